"""Every mutant that was written by hand fits the source: else `make mutants` tests nothing, and it doesn't show. And
the program finds what it should.
"""

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.mutants import survivors
from tests.mutants.__main__ import TENTHS, everyone, mutated, tenth
from tests.mutants.made import Made, all_made, made

MOST_BY_HAND = 90
ROOT = Path(__file__).resolve().parents[1]
SOURCE = '''
class Door:
    def may(self, who: str, busy: bool) -> bool:
        """Nothing is taken out of this."""
        if busy and who not in self.known:
            return False
        self.last = who
        self.note(who)
        return all(guest.left for guest in self.guests if guest.name == who)

    def close(self):
        later = [guest for guest in self.guests]
        if later:
            self.open = False
        elif self.open:
            self.note("empty")
        else:
            self.note("closed")
'''


class World:
    """What the functions of SOURCE are called with."""

    def __init__(self) -> None:
        self.known, self.guests, self.said = {"a"}, list[object](), list[str]()
        self.open, self.last = True, ""

    def note(self, what: str) -> None:
        self.said.append(what)


@pytest.mark.parametrize("name", everyone())
def test_the_text_fits_and_its_tests_are_there(name: str) -> None:
    mutant = everyone()[name]
    assert mutated(mutant)
    files = {test.partition("::")[0] for test in mutant.tests + mutant.or_tests}
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_by_hand_is_only_what_no_program_finds() -> None:
    assert len(everyone()) <= MOST_BY_HAND


@pytest.mark.slow
def test_each_run_of_ci_has_a_tenth_of_them_and_ten_runs_have_all() -> None:
    by_hand, by_program = list(everyone()), [mutant.name for mutant in all_made()]
    names = by_hand + by_program
    parts = [tenth(by_hand, by_program, number) for number in range(TENTHS)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert len(names) == len(set(names))


def test_the_program_takes_out_guards_operands_statements_filters_and_answers() -> None:
    assert [mutant.name.partition(" ")[2] for mutant in made("p/rules/door.py", SOURCE)] == [
        "Door.may: not done: self.last = who",
        "Door.may: not done: self.note(who)",
        "Door.may: never: busy and who not in self.known",
        "Door.may: always: busy and who not in self.known",
        "Door.may: always: all((guest.left for guest in self.guests if guest.name == who))",
        "Door.may: never: all((guest.left for guest in self.guests if guest.name == who))",
        "Door.may: left out: busy",
        "Door.may: left out: who not in self.known",
        "Door.may: turned round: False",
        "Door.may: filter: guest.name == who",
        "Door.close: never: later",
        "Door.close: always: later",
        "Door.close: never: self.open",
        "Door.close: always: self.open",
        "Door.close: not done otherwise: self.note('closed')",
    ]


def test_a_mutants_name_outlives_a_move_to_another_folder_and_to_other_lines() -> None:
    moved = made("p/door.py", "import os\n\n" + SOURCE)
    assert [mutant.name for mutant in moved] == [mutant.name for mutant in made("p/rules/door.py", SOURCE)]


@pytest.mark.parametrize(
    ("done", "busy", "known", "answer", "said"),
    [
        ("", True, "b", False, []),
        ("Door.may: never: busy and", True, "b", True, ["b"]),
        ("Door.may: always: busy and", False, "a", False, []),
        ("Door.may: left out: busy", False, "b", False, []),
        ("Door.may: left out: who not", True, "a", False, []),
        ("Door.may: not done: self.note", True, "a", True, []),
        ("Door.may: never: all", True, "a", False, ["a"]),
        ("Door.may: turned round: False", True, "b", True, []),
    ],
)
def test_a_function_that_is_loaded_runs_without_the_rule(
    done: str, busy: bool, known: str, answer: bool, said: list[str]
) -> None:
    function = loaded(next(one for one in made("p/door.py", SOURCE) if done in one.name) if done else None)
    world = World()
    assert function(world, known, busy) is answer
    assert world.said == said


def loaded(mutant: Made | None) -> Callable[[World, str, bool], bool]:
    names: dict[str, Any] = {}
    exec(compile(SOURCE, "p/door.py", "exec"), names)
    function: FunctionType = names["Door"].may
    if mutant is not None:
        function.__code__ = mutant.code(SOURCE)
    return function


def test_who_survives_is_not_judged_until_a_person_says_why() -> None:
    text = "+ p/b.py\n\n= None can tell.\np/a.py f: never: x\np/a.py f: never: gone\n\n? old\np/a.py f: never: y\n"
    x, y, z = there = [f"p/a.py f: never: {name}" for name in "xyz"]
    assert survivors.known(text)[x] == "= None can tell."
    again = survivors.accepted(text, {x: "", y: "a test", z: ""}, [*there, "p/b.py f: never: x"])
    assert survivors.known(again) == {x: "= None can tell.", z: survivors.NOT_JUDGED}
    assert survivors.whole(text) == {"p/b.py"} and survivors.whole(again) == {"p/a.py", "p/b.py"}
    assert survivors.whole(survivors.accepted("", {x: ""}, there)) == set(), "two of its three were not tried"
