"""One of a hundred programs that contend for a host: `python -m tests.fleet.contender DATABASE HOST SEED TTL`.

It wishes, holds, and gives back, again and again until SIGTERM, with the helper's own machine, and says of each lease
since when and until when it was relied on, by CLOCK_MONOTONIC of the machine: a line of JSON for each thing that
happens. While it relies on a lease it says so every few milliseconds; so what a process that was stopped or killed has
believed is known up to its last word, and how long it could have believed it, by the `until` of that.
"""

import json
import os
import random
import signal
import sys
import time

from fleet.rules import term as t
from fleet.rules.leases import Mode, Wish
from fleet.shell import holding
from fleet.shell.store import open_store


def main() -> None:
    database, host, seed, ttl_s = sys.argv[1:]
    dice = random.Random(int(seed))
    boot_less_real_s = float(os.environ.get("CLOCK_OFFSET_S", "0"))
    """What a time namespace adds to this process's clocks."""
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(1))

    def say(what: str, **more: object) -> None:
        line = {"who": seed, "what": what, "at": holding.clock() - boot_less_real_s, **more}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    refused = 0
    """One wish after another: a crowd that comes back at once keeps a database that is behind from catching up."""
    while not over:
        mode = Mode.EXCLUSIVE if dice.random() < 0.15 else Mode.SHARED
        wait_s = dice.choice((2.0, 10.0, 30.0))
        priority = dice.choice((0, 0, 9)) if mode is Mode.EXCLUSIVE else 0
        wish = Wish(host, mode, f"contender {seed}", "", priority, float(ttl_s), wait_s, 1.0)
        ended: list[t.Ended] = []
        wanted: list[bool] = []
        held: list[t.Granted | t.Extended] = []

        def hear(effect: t.Effect, wish: Wish = wish, ended=ended, wanted=wanted, held=held) -> None:  # type: ignore[no-untyped-def]
            if isinstance(effect, (t.Granted, t.Extended)):
                held.append(effect)
                token = effect.token if isinstance(effect, t.Granted) else None
                say("relies", mode=wish.mode.value, token=token, until=effect.until - boot_less_real_s)
            elif isinstance(effect, t.Ended):
                ended.append(effect)
                say("ends", why=effect.end.value, because=effect.why)
            elif isinstance(effect, t.Wanted):
                wanted.append(True)

        say("wishes", mode=mode.value, wait_s=wait_s)
        it = holding.Holding(open_store(database), wish, hear, looks=True)
        hold_until = holding.clock() + wait_s + 30
        while not ended and not over and holding.clock() < hold_until:
            if held:
                hold_until = min(hold_until, holding.clock() + dice.uniform(0.01, 0.3 if wanted else 1.0))
            time.sleep(0.02)
        it.give_back()
        it.join(20)
        refused = refused + 1 if any(each.end is t.End.REFUSED for each in ended) else 0
        pause_until = holding.clock() + dice.uniform(0, 0.5) * min(2**refused, 16)
        while not over and holding.clock() < pause_until:
            time.sleep(0.02)
    say("done")


if __name__ == "__main__":
    main()
