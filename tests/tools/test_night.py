"""What `make night` writes: a page that keeps what was said of a stage until that stage is run again."""

from tests.tools.night import STAGES, Run, report


def test_a_stage_that_is_left_out_keeps_its_last_report_and_each_stands_in_its_place() -> None:
    first, second, last = STAGES[0], STAGES[1], STAGES[-1]
    page = report("", Run(last, True, ("", "1 passed", "", "    its words")))
    page = report(page, Run(first, True, ("", "2 passed")))
    page = report(page, Run(second, False, ("", "3 FAILED", "", "    VIOLATION")))
    again = report(page, Run(first, True, ("", "4 passed")))
    headings = [f"## {stage.heading()}" for stage in (first, second, last)]
    assert [line for line in again.splitlines() if line.startswith("## ")] == headings
    assert again == page.replace("2 passed", "4 passed")
    assert "1 passed\n\n    its words" in again and "3 FAILED\n\n    VIOLATION" in again
