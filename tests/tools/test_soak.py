"""The soak in its shortest form: two turns of one death; and that it says what isn't as it should be."""

import random

import pytest

from tests.engine import census
from tests.gateway.door import Stream
from tests.gateway.under_load import Stage
from tests.tools.soak import Soak

pytest.importorskip("numpy")


def test_what_has_grown_is_named_and_an_engines_own_descriptors_may_come_and_go() -> None:
    first = {"processes": 10, "descriptors of door": 30, "descriptors of engines": 250}
    assert census.grown({"processes": 10, "descriptors of door": 29, "descriptors of engines": 252}, first, 4) == []
    assert census.grown({"processes": 11, "descriptors of door": 31, "descriptors of engines": 254}, first, 4) == [
        "processes",
        "descriptors of door",
        "descriptors of engines",
    ]


@pytest.mark.slow
def test_two_turns_have_a_report_that_says_what_was_counted_and_which_request_failed() -> None:
    class WrongOnce(Stage):
        rounds = 0

        def check(self, streams: list[Stream], like: list[Stream]) -> None:
            super().check(streams, like)
            self.rounds += 1
            if self.rounds == 2:  # the first is before anything happens
                raise AssertionError("an answer has another byte")

    soak = Soak("The reference engine", WrongOnce, [Stage.kill_main], random.Random(1))
    soak.run(0)
    assert (soak.failed, soak.done["kill main"]) == (["at kill_main: an answer has another byte"], 2)
    page = "\n".join(soak.lines())
    assert "**1 failed**" in page and "| processes |" in page and "| KiB of door |" in page
