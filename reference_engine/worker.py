"""A worker process of the reference engine: does what its main process asks, and ends with it.

    python -m reference_engine.worker DESCRIPTOR

It counts as one of the engine's tree before it touches a device. What it is asked: `crew.py`.
"""

import dataclasses
import os
import signal
import socket
import sys
import traceback

import reference_engine  # noqa: F401 (first: it says how many threads numpy may have)
from engine_shim import membership
from sidecar.kernel import process_setup

_PARENT = os.getppid()


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal's processes: the main one decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _standing = _count()
    serve(sock)


def _count() -> membership.Member | None:
    """Under a shim: one of its tree. Alone, it dies with its parent all the same."""
    if membership.SHIM_VARIABLE in os.environ:
        return membership.enter()
    process_setup.die_with_parent(_PARENT)
    return None


def serve(sock: socket.socket) -> None:
    import msgspec
    import numpy as np

    from engine_shim.engine import CannotRun
    from reference_engine import options
    from reference_engine.crew import Answer, Ask, Start, hear, say
    from reference_engine.rank import Rank

    rank: Rank | None = None
    try:
        told = msgspec.msgpack.decode(hear(sock)[0], type=Start)
        given = options.parse(told.arguments)
        while True:
            head, data = hear(sock)
            ask = msgspec.msgpack.decode(head, type=Ask)
            try:
                if ask.what == "start":
                    rank = Rank(given, told.home, told.rank)
                    say(sock, Answer(needs=rank.needs))
                    continue
                if rank is None:
                    raise ValueError("it was not started")
                if ask.what == "attend" or ask.what == "feed":
                    x = np.frombuffer(data, np.float32).reshape(-1, ask.width)
                    if ask.what == "attend":
                        say(sock, Answer(), rank.part.attend(ask.layer, x, ask.spans))
                    else:
                        say(sock, Answer(), rank.part.feed(ask.layer, x))
                elif ask.what == "claim":
                    claimed = rank.claim(ask.token, ask.proven)
                    say(sock, Answer(claimed=None if claimed is None else dataclasses.astuple(claimed)))
                elif ask.what == "wake":
                    say(sock, Answer(times=rank.wake(), unparked=rank.unparked))
                elif ask.what == "sleep":
                    say(sock, Answer(parked=rank.sleep(ask.blocks)))
                else:
                    say(sock, Answer(well=rank.well, needs=rank.needs))
            except (OSError, EOFError):
                raise
            except Exception as error:  # whatever it is: the main process is told, and ends
                if not isinstance(error, CannotRun):
                    traceback.print_exc()  # the main process doesn't: where it waited is no help
                code = error.exit_code if isinstance(error, CannotRun) else 0
                say(sock, Answer(error=f"{type(error).__name__}: {error}", exit_code=code))
    except (OSError, EOFError):
        return  # the main process is gone, or wants no more: what was to be given back in order has been (`sleep`)


if __name__ == "__main__":
    main()
