# ruff: noqa: E501 (quotes from the source)
"""The mutants of what a shim does to processes and files: `sidecar/process_tree.py`, `shm_cleanup.py`, `places.py`."""

from dataclasses import replace

from tests.mutants.rules import Mutant

TREE_ = "sidecar/process_tree.py"
LEFTOVERS = "engine_shim/shm_cleanup.py"
PLACES = "engine_shim/paths.py"


def _in(path: str, name: str, without: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, without, tuple((path, text, instead) for text, instead in edits))


_ALL = (
    _in(TREE_, "tree-session", "an engine has a session of its own", ("setsid=True", "setsid=False")),
    _in(
        TREE_,
        "tree-no-input",
        "and no input",
        ("os.devnull, os.O_RDONLY, 0)\n    ]", "os.devnull, os.O_RDONLY, 0)\n    ][:0]"),
    ),
    _in(TREE_, "tree-mask", "it hears the signals that its parent has blocked", ("        setsigmask=(),\n", "")),
    _in(TREE_, "tree-ignored", "and those that its parent ignores", ("setsigdef=(*HANDLED,", "setsigdef=(")),
    _in(TREE_, "tree-deep", "descendants of descendants are found", ("        queue += below\n", "")),
    _in(TREE_, "tree-zombies", "zombies aren't living processes", ("if not _is_zombie(pid)]", "]")),
    _in(
        TREE_,
        "tree-threads",
        "children of every thread are found",
        ('        for thread in os.listdir(f"/proc/{pid}/task"):\n', "        for thread in [str(pid)]:\n"),
    ),
    _in(
        TREE_,
        "tree-kill-group",
        "a whole group is killed",
        ("            os.killpg(group, signal.SIGKILL)\n", "            os.kill(group, signal.SIGKILL)\n"),
    ),
    _in(
        TREE_,
        "tree-kill-each",
        "and each that was found",
        ("            os.kill(pid, signal.SIGKILL)\n", "            pass\n"),
    ),
    _in(
        TREE_,
        "tree-collects-all",
        "all of the dead are taken away",
        (
            "        ended[pid] = os.waitstatus_to_exitcode(status)\n",
            "        ended[pid] = os.waitstatus_to_exitcode(status)\n        return ended, False\n",
        ),
    ),
    _in(
        TREE_,
        "tree-children-left",
        "and it is seen whether any child is left",
        ("            return ended, True\n", "            return ended, False\n"),
    ),
    _in(
        TREE_,
        "tree-life-held",
        "who holds a life lock of this engine counts",
        ("                if probe.locked():\n", "                if False:\n"),
    ),
    _in(
        TREE_,
        "tree-life-any-start",
        "of whatever start",
        (
            "        if probe is None:\n            continue\n",
            "        if probe is None:\n            continue\n        if name != sorted(names)[0]:\n            continue\n",
        ),
    ),
    _in(TREE_, "tree-life-own", "and of no other engine", ("if paths.is_life_of(engine_id, name)]", "]")),
    _in(
        PLACES,
        "tree-life-own-name",
        "whose name looks like it",
        ('re.escape(engine_id) + r"\\.[0-9a-f]{16}"', 'engine_id + r"\\.[0-9a-f]{16}"'),
    ),
    _in(
        TREE_,
        "tree-endpoints",
        "sockets of earlier grants go",
        ("                (directory / name).unlink(missing_ok=True)\n", "                pass\n"),
    ),
    _in(
        TREE_,
        "tree-endpoints-own",
        "those of this engine",
        ("            if paths.is_endpoint_of(engine_id, name):\n", '            if name.endswith(".sock"):\n'),
    ),
    _in(
        PLACES,
        "tree-endpoints-own-name",
        "and of none whose name looks like it",
        ('re.escape(engine_id) + r"\\.\\d+', 'engine_id + r"\\.\\d+'),
    ),
    _in(
        LEFTOVERS,
        "left-ours",
        "only what a process of our tree has is ours",
        ("for inode in _files_of(pid, device, set(wanted))}", "for inode in wanted}"),
    ),
    _in(
        LEFTOVERS,
        "left-prefixes",
        "only names that engines' libraries give",
        ("            if name.startswith(PREFIXES):\n", "            if True:\n"),
    ),
    _in(LEFTOVERS, "left-semaphores", "semaphores, too", ('"sem.mp-", ', "")),
    _in(LEFTOVERS, "left-vllm", "and vLLM's", (', "vllm_dist_")', ")")),
    _in(
        LEFTOVERS,
        "left-mapped",
        "what is mapped counts, also when it isn't open any more",
        ("    if wanted <= found:\n        return wanted\n", "    return found & wanted\n"),
    ),
    _in(LEFTOVERS, "left-renamed", "what gets its name later counts", ("_IN_CREATE | _IN_MOVED_TO)", "_IN_CREATE)")),
    _in(
        LEFTOVERS,
        "left-later",
        "whose it is may show later",
        (
            "            wait_ms = AGAIN_MS[looks] if self._unknown and looks < len(AGAIN_MS) else None\n",
            "            wait_ms = None\n",
        ),
    ),
    _in(
        LEFTOVERS,
        "left-not-for-ever",
        "but not after the tree is gone",
        (
            "                (self._directory / name).unlink(missing_ok=True)\n            self._unknown.clear()\n",
            "                (self._directory / name).unlink(missing_ok=True)\n",
        ),
    ),
    _in(
        LEFTOVERS,
        "left-bounded",
        "strangers' files aren't kept in mind without end",
        ("            if looks == len(AGAIN_MS):", "            if False:"),
    ),
    _in(
        LEFTOVERS,
        "left-inode",
        "another file of the same name stays",
        ("os.lstat(self._directory / name).st_ino == inode", "os.lstat(self._directory / name).st_ino > 0"),
    ),
    _in(
        LEFTOVERS,
        "left-list",
        "a successor knows what its predecessor saw",
        ("self.ours: dict[str, int] = self._read()", "self.ours: dict[str, int] = {}"),
    ),
    _in(
        LEFTOVERS,
        "left-list-written",
        "because that wrote it down",
        ("                self._notes.write_text(", "                str("),
    ),
    _in(
        LEFTOVERS,
        "left-list-ends",
        "and the list goes with the files",
        ("                self.ours.clear()\n                self._write()\n", "                self.ours.clear()\n"),
    ),
    _in(
        LEFTOVERS,
        "left-list-names",
        "a list that is nonsense removes nothing",
        (' and name.startswith(PREFIXES) and "/" not in name', ""),
    ),
    _in(LEFTOVERS, "left-list-paths", "nor does one that names a path", (' and "/" not in name', "")),
    _in(
        LEFTOVERS,
        "left-removes",
        "what is ours is removed",
        ("                (self._directory / name).unlink(missing_ok=True)\n", "                pass\n"),
    ),
)

PROCESSES = tuple(
    replace(mutant, tests=("tests/engine/test_tree_rules.py", "tests/sidecar/test_process_tree.py"), in_process=True)
    for mutant in _ALL
)
