"""What the tests of single parts of the lock share; for processes: `tests/evidence/parts.py`."""

from typing import Any

from evidence.rules.incarnation import Incarnation
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.context import Context
from lockserver.rules.lock import Doubt, Found, Lock
from lockserver.rules.messages import ACTIVE
from lockserver.rules.plan import Plan
from lockserver.rules.record import Tenure
from tests.evidence import parts
from tests.evidence.parts import NAME

DOUBT = Doubt(Found.HOLDER, 0.0, 10.0)
UNNAMED = Doubt(Found.NOTHING, 0.0, 2.0)
TENURE = Tenure(NAME, 7, "then", endpoint="there", verified=True)


class Turns(parts.Known):
    def __init__(self, **config: Any) -> None:
        self.config = e.Config(server_incarnation="s1", **config)
        self.context: Context
        super().__init__(self.config, Context(50))

    def said(self, conn: int) -> list[m.ServerMessage]:
        return [send.message for send in self.asked(e.Send) if send.conn == conn]

    def plan(self) -> Plan:
        return Plan(self.now, self.context.alarms)


def held_by(who: Incarnation, token: int = 7) -> Lock:
    lock = Lock(ACTIVE)
    lock.grant(who, token, "then", None, verified=True)
    lock.recorded_by = 1
    lock.hold()
    return lock
