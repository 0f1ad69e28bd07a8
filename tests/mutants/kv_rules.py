# ruff: noqa: E501 (quotes from the source)
"""The mutants of a KV cache that outlives its engine: the table's protocol, what is believed, and who has which block."""

from dataclasses import replace

from tests.mutants.rules import Mutant

TABLE = "engine_shim/kv/table.py"
PUBLISHING = "engine_shim/kv/publishing.py"
ADOPTION = "engine_shim/kv/adoption.py"
PREFIX = "reference_engine/kv_prefix.py"
MAIN = "engine_shim/main_process.py"
CONTENTS = "engine_shim/vllm_engine/contents.py"
_SIMULATED = ("tests/kv/test_simulated.py",)
_TABLE = ("tests/kv/test_table.py",)
_PREFIXES = ("tests/reference_engine/test_prefixes.py",)
_CONTENTS = ("tests/engine/test_vllm_contents.py",)
_WAY = ("tests/engine/test_main_process_rules.py",)


def _rule(file: str, name: str, without: str, tests: tuple[str, ...], *edits: tuple[str, str]) -> Mutant:
    return Mutant(f"kept-{name}", without, tuple((file, text, instead) for text, instead in edits), tests=tests)


_ALL = (
    _rule(
        CONTENTS,
        "files-stay-while-it-starts",
        "files that change while the engine starts: nobody knows which of them vLLM has read",
        _CONTENTS,
        ("    if stamps(args) != since.stamps:\n", "    if False:\n"),
    ),
    _rule(
        CONTENTS,
        "adapters-stay-until-the-wake",
        "an adapter that changes between start and wake is seen",
        _CONTENTS,
        (" != since.adapter_stamps\n", " is None\n"),
    ),
    _rule(
        CONTENTS,
        "adapters-that-cant-be-looked-at",
        "an adapter that can't be looked at counts as changed",
        _CONTENTS,
        ("        return True\n", "        return False\n"),
    ),
    _rule(
        PUBLISHING,
        "invalidated-first",
        "a record goes before its block is handed out",
        _SIMULATED,
        ("        self._table.invalidate(block)\n", "        pass\n"),
    ),
    _rule(
        PUBLISHING,
        "published-last",
        "a record comes when its step has finished, not when it is planned",
        _SIMULATED,
        (
            "        step.filled.append((block, self._table.generation(block), key, tokens))\n",
            "        step.filled.append((block, self._table.generation(block), key, tokens))\n        self.finished(step)\n",
        ),
    ),
    _rule(
        TABLE,
        "generation",
        "a step has nothing to say about a block that was handed out again",
        _SIMULATED,
        ("        if words[at + _GENERATION] != generation:\n", "        if False:\n"),
    ),
    _rule(
        TABLE,
        "generation-moves",
        "a block that is handed out has another generation",
        _SIMULATED,
        (
            "        self._words[at + _GENERATION] = (self._words[at + _GENERATION] + 1) & 0xFFFFFFFFFFFFFFFF\n",
            "        pass\n",
        ),
    ),
    _rule(
        TABLE,
        "check-sum",
        "a record is true only if its check sum is",
        _TABLE,
        ("if said == _sum(_NUMBER.pack(block) + table[at + _WORD : at + _WORD * _RECORD], self._seed):", "if table:"),
    ),
    _rule(
        TABLE,
        "sum-covers-the-block",
        "a record is right in its own place only",
        _TABLE,
        ("_FIXED.pack(block, *[words", "_FIXED.pack(0, *[words"),
    ),
    _rule(
        TABLE,
        "header-goes-first",
        "a table that is being made is no table",
        _TABLE,
        (
            "        words = self._words\n        words[_SUM] = 0\n        for block in range(self.blocks):\n",
            "        words = self._words\n        for block in range(self.blocks):\n",
        ),
    ),
    _rule(
        TABLE,
        "forgets-what-is-under-way",
        "when everything is forgotten, steps under way publish nothing",
        _TABLE,
        (
            "        for block in range(self.blocks):\n            self.invalidate(block)\n",
            "        for block in range(self.blocks):\n            if self._words[self._at(block)]:\n                self.invalidate(block)\n",
        ),
    ),
    _rule(
        ADOPTION,
        "digest",
        "a table of another digest is not believed",
        _TABLE,
        (
            "    if not table.matches(digest):\n",
            "    if not table.matches(digest) and table.matches(table._digest()) is None:\n",
        ),
    ),
    _rule(
        ADOPTION,
        "pools-are-a-fact",
        "a rank whose pool is new makes the digest another",
        _TABLE,
        ("dict(self.blocks), self.pools], sort_keys", "dict(self.blocks)], sort_keys"),
    ),
    _rule(
        ADOPTION,
        "one-owner",
        "memory that somebody had without the table is not believed",
        _TABLE,
        ("return Why.NONE if len(set(before)) == 1 else Why.OTHER_DIGEST", "return Why.NONE"),
    ),
    _rule(
        MAIN,
        "given-back-at-the-end",
        "an end in order gives back what a successor goes on with",
        _WAY,
        ("            engine.leave()\n", "            pass\n"),
    ),
    _rule(
        PREFIX,
        "says-that-it-hands-out",
        "whoever keeps records hears of a block before it is written",
        _PREFIXES,
        ("        self.hand_out(block)\n        return block\n", "        return block\n"),
    ),
    _rule(
        PREFIX,
        "key-of-all-before",
        "a key stands for all tokens before its block's end",
        _PREFIXES,
        ("hashlib.sha256(before + text[", "hashlib.sha256(text["),
    ),
    _rule(
        PREFIX,
        "shared-stays",
        "a block that somebody has is not idle",
        _PREFIXES,
        ("            self._idle.pop(block, None)\n", "            pass\n"),
    ),
    _rule(
        PREFIX,
        "adopted-last",
        "what was adopted is the last to be written over",
        _PREFIXES,
        (
            "        if self._blank:\n            block = self._blank.pop()\n        else:\n",
            "        if self._blank and not self._idle:\n            block = self._blank.pop()\n        else:\n",
        ),
    ),
)

KV = tuple(replace(mutant, in_process=True) for mutant in _ALL)
