"""Which end frees the names at once, and after which they may be of one that is dying (rule 9 of `machine.py`)."""

import pytest

from evidence.rules.callers import Callers
from evidence.rules.events import LookedUp, Peer, StrangersProbed
from lockserver.rules import events as e
from lockserver.rules.events import NamesTaken
from lockserver.rules.lock import Doubt, Found, Phase
from lockserver.rules.succession import Succession
from tests.evidence.parts import NAME
from tests.lockserver.parts import DOUBT, TENURE, Turns


class Line(Turns):
    """A new server that found a holder in the file. Process 9 has the name of its path."""

    def __init__(self) -> None:
        super().__init__()
        self.succession = Succession(self.config, self.context, Callers(self.context, lambda conn: None), self.evidence)
        b = self.registered("b", 2)
        self.succession.queue.enter(b, {}, looked=True)
        self.succession.exclusion.begin()
        self.succession.exclusion.taken(NamesTaken((("the path", "process 9"),)))
        self.found = self.from_file(look_up=False)
        self.succession.active.found(self.found, TENURE, DOUBT)

    def concludes(self) -> Phase:
        for _ in range(3):
            asked = len(self.asked(e.ProbeStrangers))
            self.succession.conclude(may_grant=True)
            if len(self.asked(e.ProbeStrangers)) > asked:
                self.evidence.strangers.probed(StrangersProbed((), ()), keep=self.succession.active.unnamed)
        return self.succession.active.phase


@pytest.mark.parametrize("how", ["looked up", "handed back", "not the last one"])
def test_who_had_the_names_is_not_a_holder_that_ended_before_this_server_began(how: str) -> None:
    line = Line()
    if how == "looked up":
        line.incarnations.looked_up(LookedUp(NAME, gone=(1, 2), alive=()))
    else:
        for number in (1, 2):
            dead = Peer(number, f"pidfs:{number}", number, number, dead=how == "handed back")
            line.incarnations.handed_back(line.found, number, dead, from_file=True)
            line.incarnations.died(number)
    if how == "not the last one":
        line.succession.active.doubt = Doubt(Found.NOTHING, -9.0, -9.0)
    line.concludes()
    line.incarnations.probed(NAME, False)
    assert line.concludes() is not Phase.GRANTING
    line.succession.exclusion.taken(NamesTaken(()))
    assert line.concludes() is Phase.FREE, "process 9 may be dying"
    line.at(line.config.settle_s)
    assert line.concludes() is Phase.GRANTING


def test_a_holder_that_this_server_saw_alive_and_then_ended_had_them() -> None:
    line = Line()
    for number in (1, 2):
        line.incarnations.handed_back(line.found, number, Peer(number, f"pidfs:{number}", number), from_file=True)
        line.incarnations.died(number)
    line.concludes()
    line.incarnations.probed(NAME, False)
    line.concludes()
    line.succession.exclusion.taken(NamesTaken(()))
    assert line.concludes() is Phase.GRANTING
