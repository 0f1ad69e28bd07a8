"""The pages of the documentation: their links, and the blocks that tell a reader what to type.

A block of `sh` is run as it stands, in the order of its page, and has to end with exit code 0. A comment in front of
it, which no reader sees, says otherwise: `<!-- stays -->`, it goes on while the rest of the page is read;
`<!-- not run: REASON -->`, it needs what isn't here: what is ours in it is held against the parsers. `<!-- beside:
COMMAND -->` in a page of its own is a command that goes on from its beginning.
"""

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sidecar.terminal import completion
from tests.support.processes import ROOT
from tools.docs_site import slug

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
USING = sorted((ROOT / "docs" / "using").glob("*.md"))
TYPED = [*USING, ROOT / "README.md"]
_BLOCK = re.compile(r"(?:^<!-- (stays|not run: [^>]+) -->\n+)?^```sh\n(.*?)^```$", re.M | re.S)
_BESIDE = re.compile(r"^<!-- beside: (.*) -->$", re.M)
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    said: str
    """`stays`, `not run: ...`, or nothing."""
    text: str


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        """With what runs beside the page first."""
        beside = [Block("stays", f"{command}\n") for command in _BESIDE.findall(self.text)]
        return beside + [Block(said, text) for said, text in _BLOCK.findall(self.text)]

    @property
    def run(self) -> list[Block]:
        return [block for block in self.blocks if not block.said.startswith("not run")]

    @cached_property
    def prose(self) -> str:
        return re.sub(r"`[^`\n]*`", "", _FENCED.sub("", self.text))

    def links(self) -> Iterator[tuple[str, str]]:
        """File and anchor of each link that stays in the repository."""
        for target in re.findall(r"\]\(([^)\s]+)\)", self.prose):
            if not re.match(r"[a-z]+:", target):
                file, _, anchor = target.partition("#")
                yield file, anchor

    def anchors(self) -> set[str]:
        """As GitHub makes them of headings."""
        headings = re.findall(r"^#+ +(.*)$", _FENCED.sub("", self.text), re.M)
        plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
        return {slug(heading) for heading in plain}


def calls(text: str, programs: dict[str, argparse.ArgumentParser]) -> Iterator[list[str]]:
    """The words of each command of ours in a text for a shell, also behind another's `--` and in front of a pipe."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("();<>|&"):
                words.append(word)
                continue
            for at, each in enumerate(words):
                if each in programs and (at == 0 or words[at - 1] == "--" or "=" in words[at - 1]):
                    yield words[at:]
                    break
            words = []


def parsers() -> dict[str, argparse.ArgumentParser]:
    return completion.programs()
