"""The mutants of GMS: each takes one rule of its two machines out of the source (see rules.py).

Kept are those that guard the one claim of GMS (never a writer and a reader together, nothing committed is lost) and the
promises of docs/gms.md.
"""

from dataclasses import replace

from tests.mutants.rules import Mutant

MACHINE = "gms/machine.py"
REGION = "gms/region.py"
WEIGHTS = "gms/weights.py"
ADMISSION = "gms/admission.py"
SHARED = "gms/shared.py"
SESSIONS = "gms/sessions.py"
MAKING = "gms/making.py"
RECOVERY = "gms/recovery.py"
HAND_BACK = "gms/hand_back.py"
DROPS = "gms/drops.py"
STATE_FILE = "gms/state_file.py"
INVARIANTS = "gms/invariants.py"
REGION_CLIENT = "gms/region_client.py"
CLIENT = "gms/client_machine.py"
POOLS = "gms/pools.py"
EXCLUSIVE = "gms/exclusive.py"
CLAIMS = "gms/claims.py"
POOL_CLIENT = "gms/pool_client_machine.py"

_ALL = (
    # -- who comes in --
    Mutant(
        "gms-writer-alone",
        "no writer comes in while somebody reads",
        (
            (ADMISSION, "        if phase is Phase.RO:\n            readers", "        if False:\n            readers"),
            (
                WEIGHTS,
                "        self._becomes(Phase.RW, before=(Phase.EMPTY, Phase.COMMITTED, Phase.RECOVERING))\n",
                "        self.phase = Phase.RW\n",
            ),
        ),
    ),
    Mutant(
        "gms-no-reader-beside-writer",
        "no reader comes in while somebody writes",
        (
            (
                ADMISSION,
                "    def _why_no_reader(self) -> str:\n",
                "    def _why_no_reader(self) -> str:\n        if self._weights.committed is not None:\n            return ''\n",
            ),
            (
                WEIGHTS,
                "        if self.phase is not Phase.RO:\n            self._becomes(Phase.RO, before=(Phase.COMMITTED,))\n",
                "",
            ),
        ),
    ),
    Mutant(
        "gms-no-step-that-isnt-in-the-table",
        "a step that no rule allows is not taken",
        (
            (
                WEIGHTS,
                "        if self.phase not in before or phase not in MAY_FOLLOW[self.phase]:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-check-first",
        "who died while it waited is not let in to write",
        ((MACHINE, "        if not event.there:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-died",
        "a process's end counts though its connection lives on",
        ((SESSIONS, "if client.process == process]", "if False]"),),
    ),
    Mutant(
        "gms-time-out",
        "who has waited for as long as it said is told why in vain",
        ((REGION, "self.device.making.of(client.conn) is None and self.context.reached(request.until):", "False:"),),
    ),
    # -- generations and the disk --
    Mutant(
        "gms-number-on-disk",
        "a writer's generation is on disk before it is let in",
        (
            (
                SHARED,
                "        self.write(becomes, Admit(client.conn, request.number, generation, replaces))\n",
                "        self._admit(Admit(client.conn, request.number, generation, replaces))\n",
            ),
        ),
    ),
    Mutant(
        "gms-no-layout-on-disk",
        "'no layout' is on disk before a writer clears one",
        (
            (
                SHARED,
                '        becomes = self.record() if replaces else self.without_memory("")\n',
                "        becomes = self.record()\n",
            ),
        ),
    ),
    Mutant(
        "gms-numbers-outlive-the-server",
        "a new server goes on counting where the file says",
        (
            (
                MACHINE,
                "max(event.generation_floor, record.given if record is not None else 0)",
                "0",
            ),
        ),
    ),
    Mutant(
        "gms-numbers-outlive-the-file",
        "generations grow though the file is lost, or an older one is there again",
        (
            (
                MACHINE,
                "max(event.generation_floor, record.given if record is not None else 0)",
                "record.given if record is not None else 0",
            ),
        ),
    ),
    Mutant(
        "gms-commit-on-disk",
        "a commit is on disk before it is acknowledged",
        (
            (
                SHARED,
                "            self.write(self.weights.record_of(layout), Acknowledge(layout))\n",
                "            self._acknowledge(layout)\n",
            ),
        ),
    ),
    Mutant(
        "gms-truth-is-written-again",
        "after a failed write the file is made to say what is so",
        (
            (
                STATE_FILE,
                "self._writes.failed(seq, why, self._context.now)",
                "self._writes.failed(seq, why, 1e9)",
            ),
        ),
    ),
    Mutant(
        "gms-wrong-file-is-written-again",
        "what was written for somebody who has gone is written over",
        ((STATE_FILE, "        self._writes.soon(self._context.now)\n", "        pass\n"),),
    ),
    # -- a writer's work --
    Mutant(
        "gms-abort",
        "a writer that ends without a commit leaves nothing",
        ((SHARED, "        self.context.forget(draft.slabs)\n", "        pass\n"),),
    ),
    Mutant(
        "gms-commit-is-checked",
        "a layout of other slabs than were made is refused",
        ((SHARED, "            lay.check(layout, [slab.size for slab in draft.slabs])\n", "            pass\n"),),
    ),
    Mutant(
        "gms-writer-reads-on",
        "a writer that has committed reads, without a gap",
        ((WEIGHTS, "        self.readers.add(draft.writer)\n", "        self.phase = Phase.COMMITTED\n"),),
    ),
    Mutant(
        "gms-create-waits",
        "on a full device a writer waits, and gets memory when there is some",
        (
            (
                MAKING,
                "            if not wanted.asked and self._context.reached(wanted.retry_at):\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-create-is-bounded",
        "on a full device a writer doesn't wait for ever",
        ((MAKING, "        if not event.why and now < wanted.until:\n", "        if not event.why:\n"),),
    ),
    # -- replacing --
    Mutant(
        "gms-replace-keeps",
        "`replace` keeps the old layout until the new one is committed",
        (
            (
                SHARED,
                "        replaces = request.message.replace and self.weights.committed is not None\n",
                "        replaces = False\n",
            ),
        ),
    ),
    Mutant(
        "gms-no-room-clears-nothing",
        "what there is no room for is refused before anything is cleared",
        (
            (
                SHARED,
                "        if message.bytes and not self.admission.wants_to_read(message):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-drop",
        "whoever has memory of a layout that is no more is asked to drop it",
        (
            (
                DROPS,
                "        return [client.conn for client in who if not",
                "        return [client.conn for client in who[:0] if not",
            ),
        ),
    ),
    Mutant(
        "gms-drops-are-named",
        "who doesn't drop it is named",
        ((DROPS, "        if late:\n", "        if False:\n"),),
    ),
    # -- many regions --
    Mutant(
        "regions-a-write-says-all",
        "a write for one region says what is so of all others",
        (
            (
                REGION,
                "for region in self.regions.values())\n        config",
                "for region in list(self.regions.values())[:1])\n        config",
            ),
        ),
    ),
    Mutant(
        "regions-one-write-at-a-time",
        "no region writes while another's write is under way",
        ((STATE_FILE, "        if self.busy:\n", "        if False:\n"),),
    ),
    Mutant(
        "regions-read-is-not-dropped",
        "what is read or written is not dropped by hand",
        ((SHARED, "        if weights.phase in (Phase.RW, Phase.RO) or not", "        if not"),),
    ),
    Mutant(
        "regions-drop-on-disk-first",
        "that a region is dropped is on disk before its memory goes",
        ((REGION, "        self.write(self.without_memory(owed.why), owed)\n", "        self.given_up(owed)\n"),),
    ),
    Mutant(
        "regions-drop-is-proven",
        "a region is gone only when the device says so, or every process that had it",
        ((REGION, "            elif not still and self.context.reached", "            elif self.context.reached"),),
    ),
    Mutant(
        "regions-one-policy-a-key",
        "a pool and a model can't have the same key",
        (
            (
                MACHINE,
                "        if there is not None and there.policy != hello.policy and not",
                "        if False and not",
            ),
        ),
    ),
    # -- readers --
    Mutant(
        "gms-wake-on-the-same",
        "who expects a layout doesn't get another",
        ((SHARED, "        if wanted.expect and wanted.expect != hash:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-kept-is-a-number",
        "kept slabs are named by their generation: a layout of the same structure may be other memory",
        (
            (
                SHARED,
                "        if wanted.have == layout.generation:\n",
                "        if wanted.have and wanted.expect == layout.hash:\n",
            ),
        ),
    ),
    # -- a new server --
    Mutant(
        "gms-window",
        "a new server keeps writers out until its layout had time to come back",
        (
            (
                ADMISSION,
                "        if self._recovery.window_is_over:\n            return",
                "        if True:\n            return",
            ),
        ),
    ),
    Mutant(
        "gms-window-goes-on",
        "and also after it is back: others who read may still be on their way",
        (
            (
                ADMISSION,
                "        if self._recovery.window_is_over:\n            return",
                "        if awaited is None or self._recovery.window_is_over:\n            return",
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
                ADMISSION,
                "self._weights.phase is Phase.RECOVERING and not self._recovery.window_is_over",
                "self._weights.phase is Phase.RECOVERING",
            ),
        ),
    ),
    Mutant(
        "gms-unreadable",
        "a file that can't be read keeps writers out, too",
        (
            (
                MACHINE,
                "            self._window_until = context.now + self.config.window_s\n",
                "",
            ),
        ),
    ),
    Mutant(
        "gms-nobody-has-it",
        "a layout of which nobody has the memory is given up at once",
        (
            (
                RECOVERY,
                "        if held is False:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-boot",
        "no memory outlives a boot",
        ((MACHINE, "        elif record.boot_id != self.config.boot_id:\n", "        elif False:\n"),),
    ),
    Mutant(
        "gms-identity",
        "what is handed back is the very memory",
        (
            (
                HAND_BACK,
                "        elif [slab.identity for slab in came] != [slab.identity for slab in expected]:\n",
                "        elif False:\n",
            ),
            (
                WEIGHTS,
                "        if [slab.identity for slab in slabs] != [slab.identity for slab in awaited.slabs]:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "gms-document",
        "and with the very document",
        (
            (
                SHARED,
                "        if awaited is None or lay.structure_hash(document) != awaited.hash:\n",
                "        if awaited is None:\n",
            ),
        ),
    ),
    Mutant(
        "gms-that-generation",
        "only the layout with that generation comes back",
        (
            (
                HAND_BACK,
                "    return (message.generation, message.hash) == (recorded.generation, recorded.hash)\n",
                "    return message.hash == recorded.hash\n",
            ),
        ),
    ),
    Mutant(
        "gms-half-handed-back",
        "what was handed back in part is let go of",
        ((HAND_BACK, "        self._context.forget(coming.slabs)\n", "        pass\n"),),
    ),
    Mutant(
        "gms-reads-on",
        "a reader that comes back is a reader at once",
        (
            (
                SHARED,
                "        if message.reading:\n            self._reads(client)\n",
                "        if False:\n            self._reads(client)\n",
            ),
        ),
    ),
    Mutant(
        "gms-away-for-too-long",
        "a reader that comes back when somebody writes is sent away",
        ((SHARED, "        if message.reading and self.weights.draft is not None:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-handed-back-is-told",
        "that a layout is back is told to those who came before it was",
        (
            (
                SHARED,
                "        self._tell(layout.generation, layout.hash, but=client)\n",
                "",
            ),
        ),
    ),
    # -- a mistake in this program, and other versions --
    Mutant(
        "gms-a-broken-rule-closes",
        "when something that must hold doesn't, nobody is let in any more",
        ((MACHINE, "        if rule:\n            self._stop_granting(rule, event)\n", ""),),
    ),
    Mutant(
        "gms-a-broken-rule-harms-nobody",
        "and no slab of the layout goes, and nothing is written",
        (
            (
                MACHINE,
                "            context.out = harmless(context.out, self.slabs)\n",
                "            pass\n",
            ),
        ),
    ),
    # -- a process's side --
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
        "gms-client-lost",
        "a writer whose server is gone has lost its work",
        ((CLIENT, "        if self.doing is Doing.WRITING and self._sealed is None:\n", "        if False:\n"),),
    ),
    Mutant(
        "gms-client-reconnects",
        "a connection that ends is made again",
        (
            (
                REGION_CLIENT,
                "        if self.link is Link.AWAY and not self._connecting:\n",
                "        if self.link is Link.AWAY and not self._connecting and not self._turned_away and self._reconnect.at == 0:\n",
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
                "        if self._awaiting is not Awaiting.OPEN or self._want is None:\n",
                "        if self._want is None:\n",
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
                "            self.doing, self._condemned = Doing.NOTHING, kept.generation\n        else:\n            self._let_go(kept.generation)\n",
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
                "            self.doing = Doing.NOTHING\n            self._let_go(kept.generation)\n",
            ),
        ),
    ),
    Mutant(
        "gms-client-time-out",
        "a request ends in time, without a server, too",
        ((REGION_CLIENT, "            if self._now >= until:\n", "            if False:\n"),),
    ),
    Mutant(
        "gms-client-reads-on-when-turned-away",
        "a server that can't talk to a reader takes nothing away from it",
        (
            (
                CLIENT,
                "        if self._awaiting is Awaiting.RETURN and not message.about:\n",
                "        if self.kept is not None:\n",
            ),
        ),
    ),
)

RARE = (
    "gms-no-step-that-isnt-in-the-table",
    "gms-died",
    "gms-time-out",
    "gms-numbers-outlive-the-file",
    "gms-truth-is-written-again",
    "gms-wrong-file-is-written-again",
    "gms-replace-keeps",
    "gms-no-room-clears-nothing",
    "gms-kept-is-a-number",
    "gms-drops-are-named",
    "regions-a-write-says-all",
    "regions-one-write-at-a-time",
    "regions-read-is-not-dropped",
    "regions-drop-on-disk-first",
    "regions-drop-is-proven",
    "regions-one-policy-a-key",
    "gms-create-is-bounded",
    "gms-window-runs-with-the-server",
    "gms-nobody-has-it",
    "gms-boot",
    "gms-document",
    "gms-away-for-too-long",
    "gms-half-handed-back",
    "gms-a-broken-rule-closes",
    "gms-a-broken-rule-harms-nobody",
    "gms-both-versions",
    "gms-client-unanswered-commit",
    "gms-client-time-out",
    "gms-client-under-way",
    "gms-client-reads-on-when-turned-away",
)
"""Coincidences that the simulator meets late or never, or promises that it doesn't measure: directed tests have them."""

TESTS = (
    "tests/gms/test_machine_rules.py",
    "tests/gms/test_machine_client.py",
    "tests/gms/test_weights.py",
    "tests/gms/test_invariants.py",
    "tests/gms/test_regions.py",
)

_SHELLS = (
    Mutant(
        "gms-believes-sizes",
        "what a descriptor that comes back is, the memory's maker says",
        (
            (
                "gms/server.py",
                "                    self.memory.release(self.memory.import_(descriptor, size))  # of this device, and of that size\n",
                "",
            ),
        ),
        tests=("tests/gms/test_shell.py",),
    ),
    Mutant(
        "gms-children-live-on",
        "no server outlives its supervisor",
        (("gms/device_process.py", "    process_setup.die_with_parent(settings.parent_pid)\n", ""),),
        tests=("tests/gms/test_supervisor.py",),
    ),
    Mutant(
        "gms-one-dies-alone",
        "one server's death ends all",
        (("gms/supervisor.py", '                self.loop.stopping = f"the server of {device} died: {how}"\n', ""),),
        tests=("tests/gms/test_supervisor.py",),
    ),
    Mutant(
        "gms-one-per-device",
        "a device has one GMS at a time, whatever the run directories are",
        (("gms/supervisor.py", "            names.take(device, key)\n", "            pass\n"),),
        tests=("tests/gms/test_attacks.py::test_a_device_has_one_gms_at_a_time_and_the_second_is_told_who_has_it",),
    ),
    Mutant(
        "gms-only-files-are-replaced",
        "only a regular file is replaced by `gmsctl get`",
        (("gms/transfer.py", "    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):\n", "    if False:\n"),),
        tests=("tests/gms/test_transfer.py::test_a_pipe_is_written_to",),
    ),
    Mutant(
        "gms-client-callbacks",
        "a callback that raises ends nothing",
        (
            (
                "sidecar/client_shell.py",
                "            callback()\n        except BaseException:\n",
                "            callback()\n        except GeneratorExit:\n",
            ),
        ),
        tests=("tests/gms/test_client_attacks.py::test_a_callback_that_raises_ends_nothing",),
    ),
)

_POOLS = (
    Mutant(
        "pools-owner-lives",
        "while an owner's process lives, nobody else becomes the owner",
        (
            (
                CLAIMS,
                "    if owner is not None and not owner.is_the_same(client.identity, client.local_pid):\n",
                "    if False and owner is not None:\n",
            ),
        ),
    ),
    Mutant(
        "pools-a-connection-is-no-process",
        "a connection that ends says nothing about its process",
        ((EXCLUSIVE, "            owner.conn = None\n", "            self._free('', '')\n"),),
    ),
    Mutant(
        "pools-newest-token",
        "nobody becomes the owner with an older token than the newest",
        (
            (CLAIMS, "    if message.token < pool.token:\n", "    if False:\n"),
            (
                POOLS,
                '        if token < self.token:\n            raise BrokenRule(f"pool {self.key} is given',
                '        if False:\n            raise BrokenRule(f"pool {self.key} is given',
            ),
            (
                INVARIANTS,
                "            if token < self._tokens.get(key, 0):\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        "pools-tokens-outlive-the-server",
        "a new server knows the newest token",
        ((POOLS, "        self.token, self.dropped = record.token,", "        self.token, self.dropped = 0,"),),
    ),
    Mutant(
        "pools-proven",
        "contents are handed on only if the lock's grant was proven",
        ((CLAIMS, "    if not message.proven:\n", "    if False:\n"),),
        tests=("tests/gms/test_pools.py::test_an_unproven_grant_gets_new_memory_and_never_the_old",),
    ),
    Mutant(
        "pools-what-cant-be-told-is-doubted",
        "an owner of which nothing can be told leaves contents that nobody gets",
        ((EXCLUSIVE, 'which owned it", "unproven"\n', 'which owned it"[:0], "unproven"\n'),),
    ),
    Mutant(
        "pools-the-owner-is-looked-for",
        "a new server looks for the owner, whether or not it comes back",
        (
            (
                EXCLUSIVE,
                "            if process is not None:\n                owner = known\n",
                "            if process is not None and known.since < 0:\n                owner = known\n",
            ),
            (
                EXCLUSIVE,
                "            elif found is not None and found.gone:\n",
                "            elif found is not None:\n",
            ),
        ),
    ),
    Mutant(
        "pools-doubt",
        "contents that are doubted are given to nobody",
        (
            (CLAIMS, "    if pool.doubt:\n", "    if False:\n"),
            (POOLS, "        if self.doubt:\n", "        if False:\n"),
        ),
    ),
    Mutant(
        "pools-second-death",
        "an owner that dies soon after it adopted leaves contents that nobody gets",
        ((EXCLUSIVE, "    if owner.adopted and lived_s < SECOND_DEATH_S:\n", "    if False:\n"),),
        tests=(
            "tests/gms/test_pools.py::test_an_owner_that_dies_soon_after_it_adopted_leaves_contents_that_nobody_gets",
        ),
    ),
    Mutant(
        "pools-second-death-by-a-clock-that-is-not-set",
        "how long an owner lived does not go by the clock on the wall",
        ((EXCLUSIVE, "doubt_of(owner, self.context.now)", "doubt_of(owner, self.context.wall)"),),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "pools-late-writes",
        "contents of an owner that could have had io_uring are handed to nobody",
        ((EXCLUSIVE, "    if owner.writes_end:\n", "    if True:\n"),),
    ),
    Mutant(
        "pools-late-writes-are-looked-for",
        "a process without a filter is not believed that it can't have io_uring",
        (("gms/server.py", "message.writes_end and not self._denies(pid)", "message.writes_end"),),
        tests=(
            "tests/gms/test_late_writes.py::test_who_says_that_it_cant_have_io_uring_and_has_no_filter_is_not_believed",
        ),
    ),
    Mutant(
        "pools-dropped-make-room",
        "a key whose pool was dropped by hand makes room for another",
        ((EXCLUSIVE, "(self.pool.dropped or not self.pool.token)", "not self.pool.token"),),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "gms-hangs-is-killed",
        "a device's server that is silent and uses no processor is killed",
        (
            (
                "gms/silence.py",
                "        idle = self._has_answered and self.idle_s >= self._most_s\n",
                "        idle = False\n",
            ),
        ),
        tests=("tests/gms/test_silence.py",),
    ),
    Mutant(
        "gms-busy-has-longer",
        "a device's server that uses the processor isn't taken for one that hangs",
        (("gms/silence.py", "if used_s < _IDLE_CPU_S else 0.0", "if True else 0.0"),),
        tests=("tests/gms/test_silence.py::test_one_that_uses_the_processor_or_has_not_begun_has_longer",),
        in_process=True,
    ),
    Mutant(
        "gms-live-knows-the-devices",
        "`/live` says that a device's server hangs",
        (("gms/metrics.py", "text(supervisor.not_well, 503) if supervisor.not_well else ", ""),),
        tests=("tests/gms/test_silence.py::test_live_says_which_server_hangs_until_it_answers",),
    ),
    Mutant(
        "pools-shape",
        "another shape is given up only if that is said",
        ((CLAIMS, "    if not fits and not message.replace:\n", "    if False:\n"),),
        tests=("tests/gms/test_pools.py::test_another_shape_is_refused_and_replaced_only_when_that_is_said",),
    ),
    Mutant(
        "pools-adopted-on-disk-first",
        "token and owner are on disk before a claim is answered",
        (
            (
                EXCLUSIVE,
                "            self.write(becomes, Adopted(client.conn, claim.number, self.pool.generation, owner))\n",
                "            self._adopted(Adopted(client.conn, claim.number, self.pool.generation, owner))\n",
            ),
        ),
    ),
    Mutant(
        "pools-released-on-disk-first",
        "a release is on disk before it is answered",
        (
            (
                EXCLUSIVE,
                "        self.write(becomes, Released(client.conn))\n",
                "        self._released(Released(client.conn))\n",
            ),
        ),
    ),
    Mutant(
        "pools-only-what-the-file-says",
        "only the memory that is in the file can be handed back",
        (
            (
                HAND_BACK,
                "        elif [slab.identity for slab in came] != [slab.identity for slab in expected]:\n",
                "        elif False:\n",
            ),
            (POOLS, "        if tuple(slab.identity for slab in slabs) != self.identities:\n", "        if False:\n"),
        ),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "pools-who-has-descriptors-brings-them",
        "whoever has descriptors brings them to a server that waits for them",
        (
            (
                POOL_CLIENT,
                "        self._brings = message.recovering and",
                "        self._brings = False and message.recovering and",
            ),
        ),
        tests=("tests/gms/test_pools.py::test_owner_and_server_die_and_the_standby_brings_it",),
    ),
    Mutant(
        "pools-given-up-is-dropped",
        "who isn't the owner lets go of what was given up",
        (
            (
                POOL_CLIENT,
                "        elif not self.token:\n            self.kept = None\n            self._let_go(generation)\n",
                "        elif not self.token:\n            self.kept = None\n",
            ),
        ),
    ),
    Mutant(
        "pools-strangers-are-named",
        "an alarm names an engine with whose pool no protocol is shared",
        ((MACHINE, "                self._strangers.came(hello)\n", "                pass\n"),),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "pools-drops-have-a-bound",
        "who says that it has more memory than a process can have is thrown out",
        (("gms/holders.py", "        return len(self._holds[conn]) <= MOST_LAYOUTS\n", "        return True\n"),),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "pools-owned-is-not-dropped-by-hand",
        "a pool whose owner lives is given up for nobody",
        (
            (
                EXCLUSIVE,
                "        if pool.owner is None and pool.phase is not Phase.MAKING:\n",
                "        if pool.phase is not Phase.MAKING:\n",
            ),
        ),
        tests=("tests/gms/test_pools.py::test_a_pool_can_be_dropped_by_hand_when_nobody_owns_it",),
    ),
    Mutant(
        "pools-off-on-a-gpu",
        "on a GPU there are no pools until a real device was asked",
        (
            (
                EXCLUSIVE,
                "        why = self.device.why_closed or config.pools_off\n",
                "        why = self.device.why_closed\n",
            ),
        ),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
)

GMS = (
    _SHELLS
    + tuple(
        mutant if mutant.tests else replace(mutant, tests=("tests/gms/test_pool_machine.py",), in_process=True)
        for mutant in _POOLS
    )
    + tuple(
        replace(
            mutant,
            world="gms",
            seeds=1_500,  # most of them have no other tests
            tests=TESTS if mutant.name in RARE else (),
            in_process=mutant.name in RARE,
        )
        for mutant in _ALL
    )
)
