"""What all pages of the documentation keep to: their lines, their links, and what they tell a reader to type."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_shim.cli.pair_look import UpFacts
from pool.entries import Entry
from pool.models_file import ModelsFile
from tests.engine.conftest import house
from tests.engine.shims import House
from tests.engine.test_up import whole
from tests.k8s.test_monitoring import ALERTS, served
from tests.support.pages import PAGES, TYPED, USING, Page, calls, parsers
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.waiting import until
from tests.tools import newcomer
from tools import python_api

__all__ = ["house"]
MOST_COLUMNS = 120
MOST_WORDS = 1500
RUN = [page for page in map(Page, TYPED) if page.run and page.name not in newcomer.PAGES]
PARSERS = parsers()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def too_long(text: str) -> list[int]:
    """The numbers of the lines that are too long. Tables and blocks between fences may be as long as they like."""
    found: list[int] = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if len(line) > MOST_COLUMNS and not fenced and not line.startswith("|"):
            found.append(number)
    return found


def test_a_line_that_is_too_long_is_seen() -> None:
    long = "x " * 61
    assert too_long(f"fits\n{long}\n| {long}\n```\n{long}\n```\n    {long}") == [2, 7]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_too_long(page: Path) -> None:
    assert too_long(page.read_text(encoding="utf-8")) == []


def broken(page: Page) -> list[str]:
    found = []
    for file, anchor in page.links():
        target = (page.path.parent / file).resolve() if file else page.path
        if not target.exists() or (anchor and anchor not in Page(target).anchors()):
            found.append(f"{file}#{anchor}")
    return found


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# `A` thing, and (more)\n[a](#a-thing-and-more) [b](#b) [c](c.md) `[d](d.md)` [e](http://e)\n")
    assert broken(Page(path)) == ["#b", "c.md#"]


@pytest.mark.parametrize("page", [Page(path) for path in PAGES], ids=lambda page: page.name)
def test_no_link_leads_nowhere(page: Page) -> None:
    assert broken(page) == []


def test_the_index_names_every_page() -> None:
    index = Page(ROOT / "docs" / "README.md")
    named = {(index.path.parent / file).resolve() for file, _ in index.links()}
    assert {path for path in PAGES if path.is_relative_to(ROOT / "docs")} - named == {index.path}


@pytest.mark.parametrize("path", USING, ids=lambda path: path.name)
def test_a_page_for_users_is_short(path: Path) -> None:
    assert len(re.findall(r"[^\s|]*\w[^\s|]*", path.read_text(encoding="utf-8"))) < MOST_WORDS


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_calls_are_found_wherever_they_stand() -> None:
    text = (
        "kubectl exec p -- lockctl status | jq .x  # lockctl y\nA=1 gms --devices \\\n  host:0\nuntil lockctl; do true"
    )
    found = [["lockctl", "status"], ["gms", "--devices", "host:0"]]
    assert list(calls(text, PARSERS)) == found


@pytest.mark.parametrize("page", [page for page in map(Page, TYPED) if page.blocks], ids=lambda page: page.name)
def test_commands_and_flags_that_are_named_are_there(page: Page) -> None:
    for block in page.blocks:
        for program, *words in calls(block.text, PARSERS):
            if words[:1] == ["every"]:  # it takes away what is behind -- first: argparse can't, behind a positional
                words = words[: words.index("--")]
            try:
                PARSERS[program].parse_args(words)
            except SystemExit as ends:
                assert ends.code in (0, None), f"{page.name}: {program} {' '.join(words)}"
        assert set(re.findall(r"^make (?:[A-Z]+=\S+ )*([a-z0-9-]+)", block.text, re.M)) <= TARGETS


def test_every_command_is_on_their_page() -> None:
    text = (ROOT / "docs" / "using" / "commands.md").read_text(encoding="utf-8")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert [name for name in scripts if not re.search(rf"`{name}[` ]", text)] == []


def test_every_field_of_models_yaml_is_on_its_page() -> None:
    text = (ROOT / "docs" / "using" / "many-models.md").read_text(encoding="utf-8")
    fields = {*ModelsFile.__struct_fields__, *Entry.__struct_fields__} - {"models", "name"}
    assert [field for field in sorted(fields) if not re.search(rf"`{field}[`:]", text)] == []


def test_what_is_not_run_says_why() -> None:
    assert [page.name for page in map(Page, TYPED) if "```bash" in page.text or "```shell" in page.text] == []
    assert [block for page in map(Page, TYPED) for block in page.blocks if block.said == "not run: "] == []


@pytest.fixture
def typing(house: House) -> Iterator["Typing"]:
    typing = Typing(house)
    yield typing
    typing.close()


class Typing:
    """A reader with an empty directory. Port 8000 of the page is a free one here."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.where = house.directory
        self.port = free_port()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        more = {"PATH": path, "HOME": str(house.directory), "FAILOVER_RUN_DIR": str(house.run_dir)}
        self.environment = {**house.environment, **more, "FAILOVER_LISTEN": f"127.0.0.1:{self.port}"}
        self.staying: list[subprocess.Popen[str]] = []

    def begins(self, page: Page) -> None:
        """In a directory of its own."""
        self.where = self.house.directory / page.path.stem
        self.where.mkdir()

    def started(self, text: str, **more: Any) -> subprocess.Popen[str]:
        typed = re.sub(r"\b(localhost|127\.0\.0\.1):8000\b", f"127.0.0.1:{self.port}", text)
        command = ["bash", "-euo", "pipefail", "-c", typed]
        return subprocess.Popen(
            command, cwd=self.where, env=self.environment, stdin=subprocess.DEVNULL, encoding="utf-8", **more
        )

    def stays(self, text: str) -> None:
        with open(self.house.directory / f"stays{len(self.staying)}.log", "w") as log:
            self.staying.append(self.started(text, stdout=log, stderr=log, start_new_session=True))

    def types(self, text: str) -> None:
        if self.staying:
            until(self.there, "one engine serves and the other is ready, or the door of many models answers")
        shell = self.started(text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = shell.communicate(timeout=300)
        assert shell.returncode == 0, f"{text}\n{shell.returncode}\n{said}{self.logs()}"

    def there(self) -> bool:
        facts = UpFacts.read(self.house.run_dir)
        return not facts.starting if facts.models else bool(whole(self.house))

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.house.directory.glob("stays*.log"))

    def close(self) -> None:
        for each in self.staying:
            each.send_signal(signal.SIGINT)
        for each in self.staying:
            assert each.wait(120) == 0, self.logs()


def together() -> Iterator[list[Page]]:
    """Pages beside which the same goes on have it one after the other; where a page ends it, it is the last."""
    of: dict[tuple[str, ...], list[Page]] = {}
    for page in RUN:
        of.setdefault(tuple(block.text for block in page.run if block.said == "stays"), []).append(page)
    for stays, pages in of.items():
        pages.sort(key=lambda page: any("failover down" in block.text for block in page.run))
        yield from [pages] if stays else [[page] for page in pages]


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pages", list(together()), ids=lambda pages: "+".join(page.path.stem for page in pages))
def test_what_a_page_says_is_what_a_reader_can_type(pages: list[Page], typing: Typing) -> None:
    for page in pages:
        typing.begins(page)
        for block in page.run:
            if block.said != "stays":
                typing.types(block.text)
            elif page is pages[0]:
                typing.stays(block.text)


def test_every_metric_is_on_the_page_and_no_other() -> None:
    text = (ROOT / "docs" / "using" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(failover_[a-z_]+)(?:\{[a-z_,]+\})?` \| (\w+) \|", text, re.M)
    there = {f"{name}_total" if kind == "counter" else name: kind for name, kind in served().items()}
    assert len(rows) == len(dict(rows))
    assert dict(rows) == there


def test_every_alert_has_its_row_and_says_how_urgent_it_is() -> None:
    text = (ROOT / "docs" / "using" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(Failover\w+)` \| (\w+)[^|]* \|", text, re.M))
    assert {rule["alert"] for rule in ALERTS} == set(rows) == set(re.findall(r"`(Failover[A-Za-z]+)`", text))
    assert [rule["alert"] for rule in ALERTS if rule["labels"]["severity"] not in text] == []


def test_the_page_of_the_python_api_is_what_docstrings_say() -> None:
    assert python_api.PAGE.read_text(encoding="utf-8") == python_api.page(), "python -m tools.python_api makes it anew"
