"""The mutants: each takes one rule out of the source, by replacing text. Here are those of the lock.

A text that isn't found exactly once is an error, so that this list can't fall behind the source
(`tests/test_mutants_fit.py`). `seeds`: the simulator must find it within so many schedules, or else the directed tests (`or_tests`).
`tests`: the tests that must fail, for rules of the shells, which the simulator doesn't run.
"""

from dataclasses import dataclass, replace

MACHINE = "lockserver/machine.py"
SUCCESSION = "lockserver/succession.py"
ADMISSION = "lockserver/admission.py"
RECOVERY = "lockserver/recovery.py"
PROOF = "evidence/proof.py"
NOBODY_HOLDS = "lockserver/proof.py"
EXCLUSION = "lockserver/exclusion.py"
LOCK = "lockserver/lock.py"
MEMORY = "lockserver/free_memory.py"
COPIES = "evidence/pidfd_copies.py"
HEARSAY = "lockserver/hearsay.py"
STRANGERS = "evidence/strangers.py"
LOOKS = "evidence/looks.py"
INCARNATIONS = "evidence/incarnations.py"
INCARNATION = "evidence/incarnation.py"
INVARIANTS = "lockserver/invariants.py"
PERMIT = "lockserver/permit.py"
QUEUE = "lockserver/queue.py"
SWITCHOVER = "lockserver/switchover.py"
CLIENT = "lockserver/client_machine.py"
DISK = "sidecar/disk_writes.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    without: str
    edits: tuple[tuple[str, str, str], ...]
    """(file, text, what it becomes)"""
    seeds: int = 350
    world: str = "lock"
    """Which simulator has to find it."""
    tests: tuple[str, ...] = ()
    or_tests: tuple[str, ...] = ()
    """What must fail where the simulator has found nothing: for rules that need many coincidences."""
    in_process: bool = False
    """These tests start no process: the changed module needs to be in their own memory only, which is quicker."""


_ALL = (
    Mutant(
        "pidfds",
        "every member's pidfd is awaited: here only the main process's",
        (
            (
                INCARNATION,
                "        return all(member.dead for member in self.members.values())\n",
                "        return all(member.dead for member in self.members.values() if member.number == MAIN)\n",
            ),
            (
                INCARNATION,
                "        return any(member.seen_alive for member in self.members.values())\n",
                "        return any(member.seen_alive for member in self.members.values() if member.number == MAIN)\n",
            ),
        ),
    ),
    Mutant(
        "giving-up-is-asked-for",
        "giving up is asked for: a grant that crosses it is taken, and ends nobody",
        ((CLIENT, "        if self.link is not Link.IN or self._speaks < 2:\n", "        if True:\n"),),
    ),
    Mutant(
        "late-join",
        "nobody joins an incarnation whose end is awaited",
        (
            (
                INCARNATIONS,
                "        if incarnation is not None and incarnation.stage is Stage.LOST and not incarnation.cannot_talk:\n            return f",
                "        if False:\n            return f",
            ),
            (
                INCARNATIONS,
                "        if incarnation is not None and incarnation.stage is Stage.DOOMED:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "life-lock",
        "the life lock must be free",
        ((INCARNATION, "self.members_gone and self.life is Life.FREE", "self.members_gone"),),
    ),
    Mutant(
        "memory",
        "what the next one needs is free",
        (
            (
                MEMORY,
                "        return all(free.get(device, (0, 0))[0] >= need for device, need in needs.items())",
                "        return True",
            ),
        ),
    ),
    Mutant(
        "fresh-memory",
        "a reading of an earlier turn proves nothing",
        (
            (
                MEMORY,
                '        """The turn is over."""\n        self.reading = None\n',
                '        """The turn is over."""\n',
            ),
        ),
    ),
    Mutant(
        "late-reading",
        "a reading that comes too late is not known",
        ((MEMORY, "reading if in_time and not self._too_old", "reading if not self._too_old"),),
    ),
    Mutant(
        "end-of-file-is-no-proof",
        "an end of file proves nothing: here it counts as the process's end",
        (
            (
                INCARNATIONS,
                "                if member.process is None and not member.conns:\n",
                "                if not member.conns:\n",
            ),
        ),
    ),
    Mutant(
        "pidfd-starts-fencing",
        "the pidfd starts fencing, too: a forked child may keep the connection open",
        ((MACHINE, '            self.succession.lose(who, Stage.DOOMED, "pidfd")\n', ""),),
    ),
    Mutant(
        "persist-before-grant",
        "first on disk, then told",
        (
            (
                LOCK,
                "        if self.phase is not Phase.HELD or self.recorded_by is None or self.recorded_by > on_disk:",
                "        if False:",
            ),
            (
                MACHINE,
                "        self.context.out.append(e.Persist(number, record))",
                "        for lock in self.succession.locks:\n            if lock.phase is Phase.GRANTING:\n                self._granted(lock)\n        self.context.out.append(e.Persist(number, record))",
            ),
        ),
    ),
    Mutant(
        "the-newest-write-decides",
        "a write that fails decides nothing while a newer one is under way: else each failure asks for one more write",
        (
            (
                MACHINE,
                "            return  # else what follows from it would be one more write that fails, and so on for ever\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "unknown-member-may-be-dying",
        "a life lock that outlives all known members means that there was one more",
        ((INCARNATION, "            self.outlived_at = now\n", "            pass\n"),),
    ),
    Mutant(
        "claim-on-disk",
        "a claim is on disk before its holder is welcomed, also the second time",
        (
            (MACHINE, "        after = max((lock.recorded_by or 0 for lock in held), default=0)", "        after = 0"),
            (
                LOCK,
                "        if self.phase is not Phase.HELD or self.recorded_by is None or self.recorded_by > on_disk:",
                "        if False:",
            ),
        ),
    ),
    Mutant(
        "failed-write",
        "a grant whose write failed is decided anew",
        (
            (
                MACHINE,
                "now):\n            return  # else what follows from it would be one more write that fails, and so on for ever\n        self.succession.take_back()\n",
                "now):\n            return\n",
            ),
        ),
    ),
    Mutant(
        "identity",
        "a main process is the process that it was",
        ((INCARNATIONS, "            return main.identity == peer.identity\n", "            return True\n"),),
    ),
    Mutant(
        "never-learned-grant",
        "a holder that never learned of its grant gets it when it comes back",
        (
            (
                MACHINE,
                "        self._welcome(event.conn, verdict, {lock.name: lock.token for lock in held}, after)",
                "        self._welcome(event.conn, verdict, {}, after)",
            ),
            (
                MACHINE,
                "            if lock.held_by(who):\n                self._tell_granted(event.conn, lock)",
                "            pass",
            ),
        ),
    ),
    Mutant(
        "second-look",
        "a waiter has looked at its engine since the holder was lost",
        (
            (
                QUEUE,
                "        if waiter.looked_in == self.round:\n            return True\n        if waiter.failed_in",
                "        if True:\n            return True\n        if waiter.failed_in",
            ),
        ),
    ),
    Mutant(
        "said-again",
        "what is said again after a lost connection is no second look",
        ((CLIENT, "needs=needs, again=True", "needs=needs, again=False"),),
    ),
    Mutant(
        "asked-again",
        "who is asked over a connection that breaks is asked over the next one",
        ((QUEUE, " or waiter.asked_on != waiter.incarnation.conn:", ":"),),
    ),
    Mutant(
        "silent-head",
        "who is silent is passed over",
        (
            (
                QUEUE,
                "        return False if now >= began + self.config.prepare_timeout_s else None",
                "        return None",
            ),
        ),
    ),
    Mutant(
        "token-across-restarts",
        "tokens outlive the server",
        (
            (
                MACHINE,
                "succession.newest_token, succession.token_floor = record.token if record is not None else 0, event.token_floor",
                "succession.newest_token, succession.token_floor = 0, 0",
            ),
        ),
    ),
    Mutant(
        "token-floor",
        "tokens outlive a lost file",
        (
            (
                MACHINE,
                "record.token if record is not None else 0, event.token_floor",
                "record.token if record is not None else 0, 0",
            ),
        ),
    ),
    Mutant(
        "newer-claim",
        "a claim that is newer than the file is the true one",
        (
            (
                ADMISSION,
                "token <= lock.token or lock.phase is Phase.GRANTING or being_proven or is_here",
                "True",
            ),
        ),
    ),
    Mutant(
        "lives-as-another",
        "a process that lives needn't be the holder that an older file calls it",
        ((ADMISSION, "holder.came and holder.seen_alive", "holder.seen_alive"),),
        tests=("tests/lockserver/test_untold.py",),
    ),
    Mutant(
        "settling",
        "without a file, time must pass",
        ((RECOVERY, "now + (self.config.settle_s if found is Found.NOTHING else self.config.window_s)", "now"),),
    ),
    Mutant(
        "return-before-memory",
        "free memory proves that nobody holds only once a live holder had time to come back",
        (
            (
                SUCCESSION,
                "        memory_is_free = comes_no_more and self",
                "        memory_is_free = self",
            ),
        ),
    ),
    Mutant(
        "strangers",
        "nobody unknown has a life lock in the directory",
        (
            (NOBODY_HOLDS, "    if strangers.held:\n", "    if False:\n"),
            (NOBODY_HOLDS, "    if known.let_go_lately:\n", "    if False:\n"),
        ),
    ),
    Mutant(
        "strangers-unread",
        "life files that can't be read don't prove that nobody has one",
        ((NOBODY_HOLDS, "    if strangers.unreadable:\n", "    if False:\n"),),
        tests=("tests/lockserver/test_nobody_holds.py",),
        in_process=True,
    ),
    Mutant(
        "newer-than-the-file",
        "who is handed back and lives counts, though the file is older",
        (
            (
                INCARNATIONS,
                "        number_taken = from_file and number in",
                "        number_taken = from_file or number in",
            ),
        ),
        tests=("tests/evidence/test_incarnations.py",),
        in_process=True,
    ),
    Mutant(
        "unreadable",
        "a file that can't be read means a holder",
        ((RECOVERY, "Found.UNREADABLE if event.unreadable else Found.NOTHING", "Found.NOTHING"),),
    ),
    Mutant(
        "doubt",
        "what was found instead of a file isn't forgotten by writing one",
        ((RECOVERY, 'doubt=doubt.found.name if doubt is not None and doubt.unnamed else "",', 'doubt="",'),),
    ),
    Mutant(
        "recovery",
        "a new server waits for the holder in the file",
        (
            (
                PROOF,
                '    if over and policy.presume_dead:\n        return Verdict(\n            True,\n            f"{who',
                '    if True:\n        return Verdict(\n            True,\n            f"{who',
            ),
        ),
    ),
    Mutant(
        "holder-of-file-lives",
        "who is seen alive is not gone, whatever else is proven",
        ((PROOF, "    if who.seen_alive or not free:\n", "    if not free:\n"),),
    ),
    Mutant(
        "no-allocation-yet",
        "free memory proves nothing where somebody could have let go of its life lock",
        ((PROOF, "    if memory_is_free and who.life_lock_tells:", "    if memory_is_free:"),),
    ),
    Mutant(
        "look-up",
        "the processes in the file are looked up",
        ((INCARNATIONS, "            self.context.out.append(LookUp(incarnation.name, asked))", "            pass"),),
    ),
    Mutant(
        "ended-members",
        "a member that ends normally is taken out of the file",
        ((MACHINE, "                self.disk.soon(self.context.now + MEMBER_WRITE_S)", "                pass"),),
    ),
    Mutant(
        "hearsay",
        "waiters tell of the holder whose file was lost",
        (
            (
                HEARSAY,
                "        if active.holder is None:\n            return active.unnamed",
                "        if active.holder is None:\n            return False",
            ),
        ),
    ),
    Mutant(
        "older-hearsay",
        "what a waiter tells may be old: the rest of the evidence is still asked for",
        ((SUCCESSION, "        remaining = lock.doubt if lock.unnamed else None", "        remaining = None"),),
    ),
    Mutant(
        "hearsay-on-disk",
        "a holder that was only heard of is told when the file knows its processes",
        (
            (
                LOCK,
                "        if self.phase in (Phase.GRANTING, Phase.HELD) and self.recorded_by is None:",
                "        if self.holder is not None and self.recorded_by is None:",
            ),
        ),
    ),
    Mutant(
        "hearsay-is-no-proof",
        "of whom no process is known, a free life lock proves nothing",
        (
            (
                INCARNATION,
                "        return bool(self.members) and self.members_gone and",
                "        return self.members_gone and",
            ),
        ),
    ),
    Mutant(
        "heard-by-copies",
        "what a waiter tells of a grant ends nobody by itself",
        (
            (
                MACHINE,
                "        self.succession.hear_of(message.token)\n",
                "        self.succession.learn_of(message.token)\n",
            ),
        ),
    ),
    Mutant(
        "heard-by-claims",
        "a claim that is put off may be made again",
        ((MACHINE, "        self.succession.hear_of(token)\n", "        self.succession.learn_of(token)\n"),),
    ),
    Mutant(
        "heard-and-greater",
        "the next token is greater than one that was only heard of",
        ((SUCCESSION, "max(self.newest_token, self._heard, self.token_floor)", "max(self.newest, self.token_floor)"),),
    ),
    Mutant(
        "who-may-hold",
        "who lives and may hold is waited for, though the file names nobody",
        ((SUCCESSION, " and may_grant and not self._plan_who_may_hold(plan):", " and may_grant:"),),
    ),
    Mutant(
        "who-may-hold-unseen",
        "a life lock of nobody who comes costs the settling time",
        (
            (
                RECOVERY,
                "        if now < self.settled_at:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "let-go-since-the-last-look",
        "who has let go of its life lock since the last look may have done so just now",
        ((STRANGERS, "if event.somebody or (before is not None and before.somebody):", "if event.somebody:"),),
        tests=("tests/evidence/test_strangers.py",),
    ),
    Mutant(
        "who-came",
        "whose main process has come and holds nothing is waited for by nobody",
        ((INCARNATIONS, "        if who.seen_alive and not who.came:\n", "        if who.seen_alive:\n"),),
    ),
    Mutant(
        "who-is-handed-back",
        "a living process of a holder that the file takes for gone counts",
        (
            (
                HEARSAY,
                "        if active.phase is Phase.FREE and message.token == newest and not",
                "        if False and not",
            ),
        ),
    ),
    Mutant(
        "number-again",
        "a number that was given again does not hide a process",
        ((INCARNATIONS, " and (number == MAIN or not peer.identity)", ""),),
    ),
    Mutant(
        "gone-for-good",
        "nobody joins a holder that was proven gone",
        (
            (
                INCARNATIONS,
                "        if name in self.pending_unlinks or name in self.gone:",
                "        if name in self.pending_unlinks:",
            ),
        ),
    ),
    Mutant(
        "old-look",
        "an old look at the life files counts for nothing",
        ((STRANGERS, "        return now >= self.stale_at()\n", "        return self.seen is None\n"),),
    ),
    Mutant(
        "old-reading",
        "memory that was read before the holder took it is not free",
        ((MEMORY, "reading if in_time and not self._too_old", "reading if in_time"),),
    ),
    Mutant(
        "never-told",
        "a grant that was never told is none",
        (
            (
                ADMISSION,
                "            if lock is self.active and lock.phase is Phase.IN_DOUBT and token is None:",
                "            if False:",
            ),
        ),
    ),
    Mutant(
        "claims-settle",
        "of a holder that only claims, workers have the time to come",
        ((ADMISSION, "        if who.older:  # no", "        if False:  # no"),),
    ),
    Mutant(
        "own-copies",
        "a main process keeps its own incarnation's pidfds across a crash of the server",
        ((COPIES, "        if own is None or own.conn is None or own.numbered <= MAIN:\n", "        if True:\n"),),
    ),
    Mutant(
        "a-stopped-recipient-gets-no-more",
        "so many copies may be with those that haven't said that they took them, and no more",
        (
            (
                COPIES,
                "        room = min(self.config.copies_under_way - recipient.under_way, self._room)",
                "        room = self.config.copies_under_way",
            ),
        ),
    ),
    Mutant(
        "taken-copies-make-room",
        "who has taken its copies gets the next ones",
        ((MACHINE, "        self.evidence.copies.taken(event.conn, message.copies)\n", ""),),
        tests=("tests/lockserver/test_rules.py",),
        in_process=True,
    ),
    Mutant(
        "copies-before-answer",
        "copies of a pidfd are out before the join is acknowledged",
        (
            (
                MACHINE,
                "        self._hand_out()\n        if not self.succession.holds(who):",
                "        if not self.succession.holds(who):",
            ),
        ),
    ),
    Mutant(
        "gone-is-on-disk",
        "who is gone is on disk before its life file goes",
        (
            (
                INCARNATIONS,
                "        if was_bound:\n            self.pending_unlinks[name] = 0\n            _remember(self.gone, name, None)\n        elif name not in self.pending_unlinks:\n",
                "        if name not in self.pending_unlinks:\n",
            ),
        ),
    ),
    Mutant(
        "rejected",
        "who claimed falsely is followed in by nobody",
        (
            (
                ADMISSION,
                '            self.incarnations.reject(name, "claimed a lock that it does not hold")\n',
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "told-to-end",
        "who was told to end doesn't come back",
        (
            (
                SUCCESSION,
                '            self.lose(told, Stage.DOOMED, "switchover")',
                '            self.lose(told, Stage.LOST, "switchover")',
            ),
        ),
    ),
    Mutant(
        "claims",
        "a claim is judged",
        (
            (
                ADMISSION,
                "        if not why and token is not None and (why := self._why_no_claim(name, token, newest)):",
                "        if False:",
            ),
        ),
    ),
    Mutant(
        "names",
        "nobody is granted while somebody else has the name of the path",
        (
            (
                SUCCESSION,
                "        return self.evidence.policy.presume_dead or self.exclusion.plan(plan, self._devices(waiter))",
                "        return True",
            ),
        ),
    ),
    Mutant(
        "names-of-the-dying",
        "who has lost the names a moment ago may be dying",
        ((EXCLUSION, "        return now < self._settled_at\n", "        return False\n"),),
        tests=("tests/lockserver/test_names.py", "tests/lockserver/test_recovery_table.py"),
        in_process=True,
    ),
    Mutant(
        "names-of-somebody-else",
        "a holder that this server has never seen isn't who had the names",
        ((SUCCESSION, " and remaining is None and holder.was_alive:", " and remaining is None:"),),
        tests=("tests/lockserver/test_whose_names.py",),
        in_process=True,
    ),
    Mutant(
        "names-of-a-newer-one",
        "where there may be a newer holder, who had the names may be that one",
        ((SUCCESSION, " and remaining is None and holder.was_alive:", " and holder.was_alive:"),),
        tests=("tests/lockserver/test_whose_names.py",),
        in_process=True,
    ),
    Mutant(
        "names-go-with-the-grant",
        "the holder gets a copy of the names",
        (
            (
                MACHINE,
                "        self.context.out.append(e.Send(conn, granted, names=lock is self.active))",
                "        self.context.out.append(e.Send(conn, granted))",
            ),
        ),
    ),
    Mutant(
        "names-are-kept",
        "a holder keeps the names until it ends",
        (
            (
                CLIENT,
                "            if message.lock == ACTIVE:\n                self._out.append(KeepNames())",
                "            pass",
            ),
        ),
    ),
    Mutant(
        "another-program",
        "a process that executes another program has let go of what it held",
        (
            (
                INCARNATIONS,
                "        return other is not None and other is not incarnation and other.stage is Stage.PRESENT",
                "        return False",
            ),
        ),
    ),
    Mutant(
        "another-version",
        "who can't talk with this server keeps what it holds",
        (
            (
                ADMISSION,
                "        token, lock = hello.claims.get(ACTIVE), self.active\n        if token is None or",
                "        token, lock = hello.claims.get(ACTIVE), self.active\n        if True or token is None or",
            ),
        ),
    ),
    Mutant(
        "not-this-version",
        "another version is no reason to end",
        (
            (
                CLIENT,
                "        elif isinstance(message, m.Incompatible):\n            self._warn(",
                "        elif isinstance(message, m.Incompatible):\n            self._refused(",
            ),
        ),
    ),
    Mutant(
        "looks-at-its-path",
        "a holder looks where its path leads",
        (
            (CLIENT, "            self._out.append(LookAtPath())\n", ""),
            (CLIENT, "        if event.elsewhere and self.link is not Link.AWAY:", "        if False:"),
        ),
    ),
    Mutant(
        "torn",
        "after a turn that was cut short the connection is made anew",
        (
            (
                CLIENT,
                "        self._away()\n        for lock, token in self.holds.items():",
                "        for lock, token in self.holds.items():",
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
        ((CLIENT, "PRESUMED_DEAD_SHARE = 0.8", "PRESUMED_DEAD_SHARE = 8.0"),),
    ),
    Mutant(
        "replaced-directory-bound",
        "a holder whose directory was replaced ends unless a server has it back in time",
        ((CLIENT, "                self._unheard_since + policy.settle_s,\n", "                math.inf,\n"),),
    ),
    Mutant(
        "holder-goes-on",
        "with proof, a holder goes on while its server is away",
        ((CLIENT, "        if policy.presume_dead:\n", "        if True:\n"),),
    ),
    Mutant(
        "come-back",
        "a connection that ends is made again",
        (
            (
                CLIENT,
                "        if self.link is Link.AWAY and not self._connecting:",
                "        if self.link is Link.AWAY and not self._connecting and self._number == 0:",
            ),
        ),
    ),
    Mutant(
        "copies-go-back-first",
        "what was kept from the last server goes back before the next one's takes its place",
        ((CLIENT, "        if self.link is not Link.IN:\n            self._return_copies()\n", ""),),
    ),
    Mutant(
        "permit-gap",
        "nobody initialises between a holder's death and its successor's Active",
        (
            (
                SUCCESSION,
                "            if not permit.why_not(self.active, self.queue, self.state.value, plan.now):",
                "            if True:",
            ),
        ),
    ),
    Mutant(
        "permit-past-the-silent",
        "a waiter that doesn't answer keeps nobody from the permit",
        ((PERMIT, " and not queue.promising(now))", " and not queue.wanted)"),),
    ),
    Mutant(
        "forget",
        "no pidfd is kept that nobody needs",
        ((INCARNATIONS, "            self.context.out.append(Forget(member.process))\n", ""),),
    ),
    Mutant(
        "exit-after-check",
        "a switchover's holder is told to end only when its successor has looked",
        ((SWITCHOVER, "            if self.queue.prepared(successor, plan.now):\n", "            if True:\n"),),
    ),
    Mutant(
        "kill-the-rest",
        "what outlives its main process is killed",
        (
            (
                INCARNATIONS,
                "        kill = who.to_kill if main is not None and main.dead else ()\n",
                "        kill = ()\n",
            ),
        ),
    ),
    Mutant(
        "broken-rule",
        "nobody is granted once the machine has found one of its own rules broken",
        (
            (
                MACHINE,
                "        succession.conclude(may_grant=not self.disk.failing and not self.broken)",
                "        succession.conclude(may_grant=not self.disk.failing)",
            ),
        ),
    ),
    Mutant(
        "disk-order",
        "what is told is on disk: here one write too early",
        (
            (
                DISK,
                "due = [what for to, what in self._owed if to <= self.done]",
                "due = [what for to, what in self._owed if to <= self.done + 1]",
            ),
        ),
    ),
    Mutant(
        "forgets-a-closed-client",
        "what holds nothing is forgotten once its client is closed, though its process lives on",
        ((INCARNATION, "        return self.may_have_left and self.life is Life.FREE\n", "        return False\n"),),
    ),
    Mutant(
        "forgets-no-client-that-may-come-back",
        "its life lock must be free for that",
        (
            (
                INCARNATION,
                "        return self.may_have_left and self.life is Life.FREE\n",
                "        return self.may_have_left\n",
            ),
        ),
    ),
    Mutant(
        "what-concerns-it",
        "whether its main process runs as another incarnation tells of this one",
        ((INCARNATIONS, "            if name != who.name and name in self.absent:\n", "            if False:\n"),),
    ),
    Mutant(
        "what-is-new-is-looked-at",
        "an incarnation of which something new is known is looked at",
        ((LOOKS, "        found = dict(self._new)\n", "        found: dict[str, None] = {}\n"),),
    ),
    Mutant(
        "room-on-a-connection-that-ends",
        "what was under way on a connection that has ended makes room",
        ((COPIES, "            self._under_way -= recipient.under_way\n", "            pass\n"),),
        tests=("tests/evidence/test_pidfd_copies.py",),
        in_process=True,
    ),
    Mutant(
        "a-look-under-way",
        "a look at the life files proves nothing while the next one is under way",
        ((STRANGERS, "        too_old = self._asked or self._stale(now)\n", "        too_old = self._stale(now)\n"),),
        tests=("tests/evidence/test_strangers.py",),
        in_process=True,
    ),
    Mutant(
        "overdue",
        "a takeover that is withheld for longer than the window is an alarm",
        ((SUCCESSION, "            plan.awaited[lock.name] = Awaited(holder)\n", "            pass\n"),),
    ),
    Mutant(
        "overdue-ends",
        "that alarm ends with the proof",
        (("lockserver/overdue.py", "            self.context.calm(self._alarm)\n", "            pass\n"),),
    ),
    Mutant(
        "overdue-without-a-look",
        "it comes though /proc hangs",
        (("lockserver/overdue.py", "            plan.say(self.context.alarm, self._alarm, text)", "            pass"),),
    ),
)

DIRECTED = (
    *(
        f"tests/lockserver/test_{name}.py"
        for name in (
            "rules",
            "recovery_table",
            "client_machine",
            "memory",
            "overdue",
            "switchover",
            "found_by_the_simulator",
            "untold",
            "names",
            "whose_names",
        )
    ),
    "tests/evidence",
    "tests/sidecar/test_disk_writes.py",
)
MUTANTS = tuple(replace(mutant, or_tests=DIRECTED) for mutant in _ALL)
