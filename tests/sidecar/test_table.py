"""Columns that stand below each other, whatever is in them."""

from sidecar.terminal import table


def test_columns_are_as_wide_as_their_widest_word_and_lines_end_with_their_last_one() -> None:
    rows = [("a", "Active", "unix:/x"), ("engine", "Init", ""), ("b",)]
    assert table.lines(rows) == ["a       Active  unix:/x", "engine  Init", "b"]


def test_figures_can_stand_to_the_right_and_columns_be_wider_than_their_words() -> None:
    assert table.lines([(1, "x"), (100, "y")], right={0}) == ["  1  x", "100  y"]
    assert table.lines([("a", "b", "c")], least=(3, 2)) == ["a    b   c"]


def test_colours_take_no_room() -> None:
    rows = [("\x1b[1;32mgood\x1b[0m", "x"), ("better", "y")]
    assert table.lines(rows) == ["\x1b[1;32mgood\x1b[0m    x", "better  y"]


def test_of_nothing_there_are_no_lines() -> None:
    assert table.lines([]) == [] and table.lines([()]) == [""]
