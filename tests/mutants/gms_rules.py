"""The mutants of GMS: each takes one rule of its two machines out of the source (see rules.py)."""

from dataclasses import replace

from tests.mutants.rules import Mutant

MACHINE = "gms/machine.py"
DESK = "gms/desk.py"
WRITING = "gms/writing.py"
RECOVERY = "gms/recovery.py"
PINS = "gms/pins.py"
RECORD = "gms/record.py"
CLIENT = "gms/client_machine.py"

_ALL = (
    Mutant(
        "gms-writer-alone",
        "no writer comes in while somebody reads",
        ((MACHINE, "        if readers := self.readers:\n", "        if (readers := self.readers) and False:\n"),),
    ),
    Mutant(
        "gms-no-reader-beside-writer",
        "no reader comes in while somebody writes",
        (
            (
                MACHINE,
                "        if self.draft is not None:\n            return f",
                "        if self.draft is not None and not self.reads(wish):\n            return f",
            ),
        ),
    ),
    Mutant(
        "gms-look-first",
        "who died while it waited is not let in to write",
        ((MACHINE, "        if not event.there:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-died",
        "a process's end counts though its connection lives on",
        ((MACHINE, "            if client.process == event.process:\n", "            if False:\n"),),
    ),
    Mutant(
        "gms-in-order",
        "the queue is looked at in order",
        ((MACHINE, "client.wish.number if client.wish", "-client.wish.number if client.wish"),),
    ),
    Mutant(
        "gms-time-out",
        "who has waited for as long as it said is told why in vain",
        (
            (
                MACHINE,
                "            if wish is not None and self.context.reached(wish.until):\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-number-on-disk",
        "a writer's number is on disk before it is let in",
        (
            (
                MACHINE,
                "        self.write(record, written, failed)\n",
                "        self._let_write(client, generation, clears=not keeps)\n        self.write(record, _nothing, failed)\n",
            ),
        ),
    ),
    Mutant(
        "gms-no-layout-on-disk",
        "'no layout' is on disk before a writer clears one",
        (
            (
                MACHINE,
                "        record = self.truth() if keeps else Record(given=generation)\n",
                "        record = self.truth()\n",
            ),
        ),
    ),
    Mutant(
        "gms-numbers-outlive-the-server",
        "a new server goes on counting where the file says",
        (
            (
                RECOVERY,
                "        machine.given = max(record.given, record.generation)\n",
                "        machine.given = record.generation\n",
            ),
        ),
    ),
    Mutant(
        "gms-numbers-outlive-the-file",
        "numbers grow though the file is lost",
        ((RECOVERY, "            machine.given = event.generation_floor\n", "            machine.given = 0\n"),),
    ),
    Mutant(
        "gms-abort",
        "a writer that ends without a commit leaves nothing",
        ((WRITING, "            self.machine.forget(draft.slabs)\n", "            pass\n"),),
    ),
    Mutant(
        "gms-commit-is-checked",
        "a layout of other slabs than were made is refused",
        ((WRITING, "            lay.check(layout, [slab.size for slab in draft.slabs])\n", "            pass\n"),),
    ),
    Mutant(
        "gms-commit-on-disk",
        "a commit is on disk before it is acknowledged",
        (
            (
                WRITING,
                "        self.machine.write(record, lambda: self._committed(draft, new), failed)\n",
                "        self._committed(draft, new)\n        self.machine.write(record, lambda: None, failed)\n",
            ),
        ),
    ),
    Mutant(
        "gms-truth-is-written-again",
        "after a failed write the file is made to say what is so",
        ((MACHINE, "            self._rewrite_at = self.context.now + RETRY_PERSIST_S\n", "            pass\n"),),
    ),
    Mutant(
        "gms-writer-reads-on",
        "a writer that has committed reads, without a gap",
        ((WRITING, "        machine.begins_to_read(draft.writer, new)\n", "        machine.rest(draft.writer)\n"),),
    ),
    Mutant(
        "gms-replace-keeps",
        "`replace` keeps the old layout until the new one is committed",
        ((MACHINE, "        keeps = wish.open.replace and self.committed is not None\n", "        keeps = False\n"),),
    ),
    Mutant(
        "gms-replace-needs-room",
        "a replacement that doesn't fit beside the old layout is refused at once",
        ((MACHINE, "        if message.replace and not self.reads(message):\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-drop",
        "whoever has memory of a layout that is no more is asked to drop it",
        ((PINS, "            if generation in client.holds:\n", "            if False:\n"),),
    ),
    Mutant(
        "gms-pins-named",
        "who doesn't drop it is named",
        (
            (
                PINS,
                '            context.alarm("pins"',
                '            context.calm("pins") if late else context.alarm("pins"',
            ),
        ),
    ),
    Mutant(
        "gms-create-waits",
        "on a full device a writer waits, and gets memory when there is some",
        (
            (
                WRITING,
                "        if draft is not None and draft.create is not None and self.context.reached(draft.create.retry_at):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-create-is-bounded",
        "on a full device a writer doesn't wait for ever",
        ((WRITING, "        elif self.context.now >= create.until:\n", "        elif False:\n"),),
    ),
    Mutant(
        "gms-create-never-fits",
        "what can never fit is refused at once",
        ((WRITING, "        elif size + draft.size + stays > config.capacity:\n", "        elif False:\n"),),
    ),
    Mutant(
        "gms-wake-on-the-same",
        "who expects a layout doesn't get another",
        ((MACHINE, "        if wish.expect and wish.expect != layout.hash:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-kept-is-a-number",
        "kept slabs are named by their number: a layout of the same structure may be other memory",
        (
            (
                MACHINE,
                "        kept = wish.have == layout.generation\n",
                "        kept = bool(wish.have) and wish.expect == layout.hash\n",
            ),
        ),
    ),
    Mutant(
        "gms-window",
        "a new server keeps writers out until its layout had time to come back",
        (
            (
                RECOVERY,
                "    def why_no_writer(self) -> str:\n",
                "    def why_no_writer(self) -> str:\n        return ''\n",
            ),
        ),
    ),
    Mutant(
        "gms-window-goes-on",
        "and also after it is back: others who read may still be on their way",
        (
            (
                RECOVERY,
                "    def why_no_writer(self) -> str:\n        if self.context",
                "    def why_no_writer(self) -> str:\n        if self.awaited is None or self.context",
            ),
        ),
    ),
    Mutant(
        "gms-window-runs-with-the-server",
        "time in which the server was stopped is no time to come back",
        ((RECOVERY, "            self._window_until += asleep_s\n", "            pass\n"),),
    ),
    Mutant(
        "gms-window-ends",
        "who can read or write writes once the window is over",
        (
            (
                RECOVERY,
                "        return self.awaited is not None and not self.context.reached(self._window_until)\n",
                "        return self.awaited is not None\n",
            ),
        ),
    ),
    Mutant(
        "gms-unreadable",
        "a file that can't be read keeps writers out, too",
        (
            (
                RECOVERY,
                "            if event.unreadable:\n                self._window_until = self.context.now + config.window_s\n",
                "            if event.unreadable:\n",
            ),
        ),
    ),
    Mutant(
        "gms-nobody-has-it",
        "a layout of which nobody has the memory is given up at once",
        ((RECOVERY, "        if self.awaited is not None and memory.held is False:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-boot",
        "no memory outlives a boot",
        ((RECOVERY, "        if record.boot_id != config.boot_id:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-identity",
        "what is handed back is the very memory",
        (
            (
                RECOVERY,
                "        elif [slab.identity for slab in came] != [slab.identity for slab in expected]:\n",
                "        elif False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-sizes",
        "and of the very sizes",
        (
            (
                RECOVERY,
                "        if tuple(message.sizes) != tuple(slab.size for slab in awaited.slabs):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-document",
        "and with the very document",
        (
            (
                RECOVERY,
                "        elif message.first == 0 and lay.structure_hash(returning.document) != awaited.hash:\n",
                "        elif False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-that-number",
        "only the layout with that number comes back",
        (
            (
                RECOVERY,
                "(message.generation, message.hash) == (layout.generation, layout.hash)",
                "message.hash == layout.hash",
            ),
        ),
    ),
    Mutant(
        "gms-half-handed-back",
        "what was handed back in part is let go of",
        ((RECOVERY, "        self.machine.forget(returning.slabs)\n", "        pass\n"),),
    ),
    Mutant(
        "gms-reads-on",
        "a reader that comes back is a reader at once",
        ((RECOVERY, "        if message.reading:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-away-for-too-long",
        "a reader that comes back when somebody writes is sent away",
        ((RECOVERY, "        if message.reading and machine.draft is not None:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-forget-process",
        "no pidfd is kept that nobody needs",
        (
            (
                DESK,
                "        if client.process is not None:\n            self.context.out.append(e.ForgetProcess(client.process))\n",
                "",
            ),
        ),
    ),
    Mutant(
        "gms-client-comes-back",
        "a process brings back what it has kept",
        (
            (
                CLIENT,
                "        self._returned = self.kept is None and self._sealed is None\n",
                "        self._returned = True\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-brings-it",
        "to a server that waits for it, it brings the slabs",
        (
            (
                CLIENT,
                "        brings = self._recovering == (layout.generation, layout.hash)\n",
                "        brings = False\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-unanswered-commit",
        "a writer whose commit wasn't answered comes back with it",
        (
            (
                CLIENT,
                "        if self.doing is Doing.WRITING and self._sealed is None:\n",
                "        if self.doing is Doing.WRITING:\n",
            ),
        ),
    ),
    Mutant(
        "gms-handed-back-is-told",
        "that a layout is back is told to those who came before it was",
        (
            (
                RECOVERY,
                "        machine.tell(m.Changed(generation=layout.generation, hash=layout.hash), but=client)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "gms-client-lost",
        "a writer whose server is gone has lost its work",
        (
            (
                CLIENT,
                "        if self.doing is Doing.WRITING and self._sealed is None:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-asks-again",
        "who waits asks the next server again",
        (
            (
                CLIENT,
                "        self.link, self._connecting, self._session = Link.AWAY, False, False\n",
                "        self.link, self._connecting = Link.AWAY, False\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-reconnects",
        "a connection that ends is made again",
        (
            (
                CLIENT,
                "        if self.link is Link.AWAY and not self._connecting:\n",
                "        if self.link is Link.AWAY and not self._connecting and self._in_since < 0:\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-under-way",
        "what was answered before a withdrawal means nothing",
        (
            (
                CLIENT,
                "        elif self._awaiting is Awaiting.WITHDRAWN:\n            return",
                "        elif False:\n            return",
            ),
            (
                CLIENT,
                "        if self._awaiting is not Awaiting.OPEN or wish is None:\n",
                "        if wish is None:\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-says-what-it-keeps",
        "a sleeper says what it keeps",
        ((CLIENT, "keeps=self.kept.generation if self.kept is not None else 0", "keeps=0"),),
    ),
    Mutant(
        "gms-client-drops",
        "a sleeper that is told to drop a layout drops it",
        (
            (
                CLIENT,
                "            self.doing, self._condemned = Doing.NOTHING, kept.generation\n        else:\n            self._out.append(LetGo(kept.generation))\n",
                "            self.doing, self._condemned = Doing.NOTHING, kept.generation\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-never-under-its-feet",
        "what a program has mapped isn't let go of before it says so",
        (
            (
                CLIENT,
                "            self.doing, self._condemned = Doing.NOTHING, kept.generation\n",
                "            self.doing = Doing.NOTHING\n            self._out.append(LetGo(kept.generation))\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-lets-the-old-go",
        "who wakes on a new layout lets the old one go",
        (
            (
                CLIENT,
                "        if old is not None:\n            self._out.append(LetGo(old.generation))\n        self._out.append(Got(opened))\n",
                "        self._out.append(Got(opened))\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-half-arrived",
        "slabs of a layout that didn't arrive whole are let go of",
        ((CLIENT, "            self._out.append(LetGo(opened.generation))\n", "            pass\n"),),
    ),
    Mutant(
        "gms-client-time-out",
        "a wish ends in time, without a server, too",
        ((CLIENT, "            if self._now >= until:\n", "            if False:\n"),),
    ),
)

RARE = (
    "gms-died",
    "gms-in-order",
    "gms-time-out",
    "gms-numbers-outlive-the-file",
    "gms-replace-keeps",
    "gms-replace-needs-room",
    "gms-kept-is-a-number",
    "gms-client-lets-the-old-go",
    "gms-pins-named",
    "gms-create-is-bounded",
    "gms-create-never-fits",
    "gms-window-runs-with-the-server",
    "gms-nobody-has-it",
    "gms-boot",
    "gms-sizes",
    "gms-document",
    "gms-away-for-too-long",
    "gms-client-unanswered-commit",
    "gms-client-time-out",
    "gms-half-handed-back",
)
"""Coincidences that the simulator meets late or never, or promises that it doesn't measure: directed tests have them."""

GMS = tuple(
    replace(
        mutant,
        world="gms",
        tests=("tests/gms/test_machine_rules.py", "tests/gms/test_machine_client.py") if mutant.name in RARE else (),
    )
    for mutant in _ALL
)
