"""The mutants: each takes one rule out of the source, by replacing text.

A text that isn't found exactly once is an error, so that this list can't fall behind the source. `seeds`: the simulator must find it within so many schedules.
`tests`: for rules of the shells, which the simulator doesn't run, the tests that must fail.
"""

from dataclasses import dataclass, replace

MACHINE = "lockserver/machine.py"
DESK = "lockserver/desk.py"
INQUEST = "lockserver/inquest.py"
COPIES = "lockserver/copies.py"
FOREST = "lockserver/forest.py"
QUEUE = "lockserver/queue.py"
TREE = "lockserver/tree.py"
CLIENT_MACHINE = "lockserver/client_machine.py"
SWITCHOVER = "lockserver/switchover.py"
WORLD = "tests/sim/world.py"
ACTORS = "tests/sim/actors.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    without: str
    edits: tuple[tuple[str, str, str], ...]
    """(file, text, what it becomes)"""
    seeds: int = 20_000
    world: str = "lock"
    """Which simulator has to find it."""
    tests: tuple[str, ...] = ()
    in_process: bool = False
    """These tests start no process: the changed module needs to be in their own memory only, which is quicker."""


_ALL = (
    Mutant(
        "pidfds",
        "every member's pidfd is awaited: here only the main process's",
        (
            (
                TREE,
                "return all(member.dead for member in self.members.values())",
                "return all(member.dead for member in self.members.values() if member.number == MAIN)",
            ),
            (
                TREE,
                "return any(member.seen_alive for member in self.members.values())",
                "return any(member.seen_alive for member in self.members.values() if member.number == MAIN)",
            ),
        ),
    ),
    Mutant(
        "late-join",
        "nobody joins a condemned tree",
        (
            (
                FOREST,
                "        tree = self.trees.get(name)\n        if tree is not None and tree.stage is Stage.LOST:",
                "        return ''\n        if tree is not None and tree.stage is Stage.LOST:",
            ),
        ),
    ),
    Mutant(
        "life-lock",
        "the life lock must be free",
        ((TREE, "return self.members_gone and self.life is Life.FREE", "return self.members_gone"),),
    ),
    Mutant(
        "one-file-each-start",
        "a life file belongs to one start of an engine: here to its name",
        (
            (ACTORS, 'return f"{LIFE}/{name}"', "return f\"{LIFE}/{name.rpartition('.')[0] or name}\""),
            (
                ACTORS,
                "fd = self.process.open(path, create=True, exclusive=True)",
                "fd = self.process.open(path, create=True)",
            ),
        ),
    ),
    Mutant(
        "memory",
        "what the next one needs is free",
        (
            (
                QUEUE,
                "return all(free.get(device, (0, 0))[0] >= need for device, need in waiter.needs.items())",
                "return True",
            ),
        ),
    ),
    Mutant(
        "fresh-memory",
        "a reading of an earlier turn proves nothing",
        ((MACHINE, "        self.queue.reading = None\n", ""),),
    ),
    Mutant(
        "end-of-file-is-no-proof",
        "an end-of-file proves nothing: here it counts as the process's end",
        (
            (
                FOREST,
                "                if member.process is None:\n                    member.dead = True",
                "                if True:\n                    member.dead = True",
            ),
        ),
    ),
    Mutant(
        "pidfd-starts-fencing",
        "the pidfd starts fencing, too: a forked child may keep the connection open",
        ((MACHINE, '            self._lose(tree, Stage.DOOMED, "pidfd")\n', "            tree.main.dead = False\n"),),
    ),
    Mutant(
        "persist-before-grant",
        "first on disk, then told",
        (
            (
                MACHINE,
                "        lock.written_by = self._seq\n",
                "        lock.written_by = self._seq\n        lock.told = True\n        self.context.out.insert(-1, e.Send(tree.conn or 0, m.Granted(lock=lock.name, token=lock.token)))\n",
            ),
        ),
    ),
    Mutant(
        "failed-write",
        "a grant whose write failed is decided anew",
        (
            (
                MACHINE,
                "            if lock.holder is not None and not lock.told:\n                self._take_back(lock, lock.holder)\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "identity",
        "a main process is the process that it was",
        (
            (
                FOREST,
                "        main = tree.main\n        if main is None:\n            return True\n",
                "        return True\n        main = tree.main\n",
            ),
        ),
    ),
    Mutant(
        "never-learned-grant",
        "a holder that never learned of its grant gets it when it comes back",
        (
            (DESK, "                holds[lock.name] = lock.token\n", ""),
            (
                MACHINE,
                "            if lock.told:\n                self.context.send(event.conn, m.Granted",
                "            if False:\n                self.context.send(event.conn, m.Granted",
            ),
        ),
    ),
    Mutant(
        "second-look",
        "a waiter has looked at its engine since the holder was lost",
        ((QUEUE, "        if waiter.looked == self.round:\n", "        if True:\n"),),
    ),
    Mutant(
        "said-again",
        "what is said again after a lost connection is no second look",
        ((CLIENT_MACHINE, "needs=needs, again=True", "needs=needs, again=False"),),
    ),
    Mutant(
        "silent-head",
        "who is silent is passed over",
        (
            (
                QUEUE,
                "        return False if self.context.reached(waiter.asked_at + self.config.prepare_timeout_s) else None",
                "        return None",
            ),
        ),
    ),
    Mutant(
        "token-across-restarts",
        "tokens outlive the server",
        ((INQUEST, "        self.machine.token = record.token\n", "        self.machine.token = 0\n"),),
    ),
    Mutant(
        "token-floor",
        "tokens outlive a lost file",
        ((INQUEST, "            self.machine.token = event.token_floor\n", "            self.machine.token = 0\n"),),
    ),
    Mutant(
        "settling",
        "without a file, time must pass",
        (
            (
                INQUEST,
                "else self.config.settle_s)\n        self.machine.active.recovery",
                "else 0.0)\n        self.machine.active.recovery",
            ),
        ),
    ),
    Mutant(
        "return-before-memory",
        "in a new directory free memory proves only once a live holder had time to come back",
        ((INQUEST, "self.context.reached(recovery.since + RETURN_S) and self.queue", "self.queue"),),
    ),
    Mutant(
        "strangers",
        "nobody unknown has a life lock in the directory",
        (
            (INQUEST, "        stale = probed is None or probed.held or", "        stale = probed is None or"),
            (
                INQUEST,
                "        if not self.context.reached(self._held_at + self.config.settle_s):",
                "        if False:",
            ),
        ),
    ),
    Mutant(
        "unreadable",
        "a file that can't be read means a holder",
        ((INQUEST, "Found.UNREADABLE if event.unreadable else Found.NOTHING", "Found.NOTHING"),),
    ),
    Mutant(
        "doubt",
        "what was found instead of a file isn't forgotten by writing one",
        ((MACHINE, "        return recovery.found.name if recovery", '        return "" if recovery'),),
    ),
    Mutant(
        "kept-aside",
        "a file kept aside is the last word, across a second crash",
        (("lockserver/server.py", 'unreadable=f"kept aside as {aside[-1]}" if aside else ""', 'unreadable=""'),),
    ),
    Mutant(
        "recovery",
        "a new server waits for the holder in the file",
        (
            (
                INQUEST,
                "        if recovery is None:\n            return False\n",
                "        if recovery is None:\n            return False\n        return True\n",
            ),
        ),
    ),
    Mutant(
        "holder-of-file-lives",
        "who is seen alive is not gone, whatever else is proven",
        ((INQUEST, "        if tree.seen_alive or not free:", "        if not free:"),),
    ),
    Mutant(
        "hearsay",
        "waiters tell of the holder whose file was lost",
        (
            (
                COPIES,
                "        lock.holder, lock.told, lock.token = tree, True, message.token\n",
                "        return tree\n",
            ),
        ),
    ),
    Mutant(
        "older-hearsay",
        "what a waiter tells may be old: the rest of the evidence is still asked for",
        ((MACHINE, "            lock.recovery = unknown  # a waiter", "            lock.recovery = None  # a waiter"),),
    ),
    Mutant(
        "own-copies",
        "a main process keeps its own tree's pidfds across a crash of the server",
        ((COPIES, "            if tree.conn is not None and tree.numbered > MAIN:\n", "            if False:\n"),),
    ),
    Mutant(
        "copies-before-answer",
        "copies of a pidfd are out before the join is acknowledged",
        (
            (
                DESK,
                "        self.machine.copies.hand_out()\n        if self.machine.holds(tree):",
                "        if self.machine.holds(tree):",
            ),
        ),
    ),
    Mutant(
        "graves",
        "who is gone is on disk before its life file goes",
        ((MACHINE, "            list(self.forest.graves),\n", "            [],\n"),),
        seeds=60_000,
    ),
    Mutant(
        "outcast",
        "who claimed falsely is followed in by nobody",
        ((DESK, "                self.forest.outcast.add(name)\n", "                pass\n"),),
    ),
    Mutant(
        "told-to-end",
        "who was told to end doesn't come back",
        (
            (
                FOREST,
                "        if tree is not None and tree.stage is Stage.DOOMED:",
                "        if False and tree is not None:",
            ),
            (
                FOREST,
                "tree.stage is Stage.LOST:\n            return f",
                "tree.stage in (Stage.LOST, Stage.DOOMED):\n            return f",
            ),
        ),
    ),
    Mutant(
        "claims",
        "a claim is judged",
        (
            (
                DESK,
                "        if lock.holder is not None and lock.holder.name != name:\n",
                "        return ''\n        if lock.holder is not None and lock.holder.name != name:\n",
            ),
        ),
    ),
    Mutant(
        "directory-replaced",
        "a server whose directory was replaced makes room",
        (
            (
                MACHINE,
                "        self._started = False\n        self.context.out.append(e.Stop(event.why))",
                "        pass",
            ),
        ),
    ),
    Mutant(
        "presumed-dead-ends-first",
        "who may be presumed dead ends before the window does",
        ((CLIENT_MACHINE, "PRESUMED_DEAD_SHARE = 0.8", "PRESUMED_DEAD_SHARE = 8.0"),),
    ),
    Mutant(
        "replaced-directory-bound",
        "a holder whose directory was replaced ends unless a server has it back in time",
        ((CLIENT_MACHINE, "            self._moved_at + policy.settle_s,\n", "            math.inf,\n"),),
    ),
    Mutant(
        "holder-goes-on",
        "with proof, a holder goes on while its server is away",
        ((CLIENT_MACHINE, "        if policy.presume_dead:\n", "        if True:\n"),),
    ),
    Mutant(
        "come-back",
        "a connection that ends is made again",
        (
            (
                CLIENT_MACHINE,
                "        if self.link is Link.AWAY and not self._connecting:",
                "        if self.link is Link.AWAY and not self._connecting and self._number == 0:",
            ),
        ),
    ),
    Mutant(
        "permit-gap",
        "nobody initialises between a holder's death and its successor's Active",
        ((MACHINE, "and not self._disk_fails and not self.why_no_init():", "and not self._disk_fails:"),),
    ),
    Mutant(
        "copies-go-back-first",
        "what was kept from the last server goes back before the next one's takes its place",
        ((CLIENT_MACHINE, "        if self.link is not Link.IN:\n            self._return_copies()\n", ""),),
    ),
    Mutant(
        "permit-past-the-silent",
        "a waiter that doesn't answer keeps nobody from the permit",
        ((MACHINE, " and not self.queue.promising", " and not self.queue.wanted"),),
    ),
    Mutant(
        "forget",
        "no pidfd is kept that nobody needs",
        ((FOREST, "            self.context.out.append(Forget(member.process))\n", ""),),
    ),
    Mutant(
        "exit-after-check",
        "a switchover's holder is told to end only when its successor has looked",
        (
            (
                SWITCHOVER,
                "plan.step is Step.CHECKING and machine.queue.prepared(successor)",
                "plan.step is Step.CHECKING",
            ),
        ),
    ),
)

RARE = (
    "said-again",
    "claims",
    "outcast",
    "told-to-end",
    "older-hearsay",
    "copies-before-answer",
    "holder-of-file-lives",
    "replaced-directory-bound",
    "unreadable",
    "doubt",
    "kept-aside",
    "hearsay",
    "return-before-memory",
    "presumed-dead-ends-first",
    "permit-past-the-silent",
    "copies-go-back-first",
)
"""They need so many coincidences that the simulator finds them late or never; directed tests of the machines find them."""

MUTANTS = tuple(replace(mutant, tests=("tests/lockserver",)) if mutant.name in RARE else mutant for mutant in _ALL)
