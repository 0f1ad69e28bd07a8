"""Which controller leads: a Lease of Kubernetes, the second of whose `acquireTime` is the token of all that it does.

No clock is compared with another machine's: a candidate takes a Lease over when it has seen no change of it for its
whole time, by its own clock; a leader trusts its own from the moment *before* it wrote it, and for two thirds of the
time. Tokens only grow, also where a Lease was deleted or edited by hand: pools and requesters obey no lower one. So
they are no less than the API server's seconds, which `leaseTransitions` could hold until 2038 only, and more than
each seen.

Pure: what a Lease says goes in; what is to be written over it, if it may be, comes out.
"""

from datetime import UTC, datetime
from typing import Any

from dual_pods.rules.machine import newer

NO_TOKEN = 100_000_000_000
"""The year 5138: no controller has written that, and another one might find no later time."""
UNSEEN_S = 10
"""Where there is no Lease, it may have been deleted as soon as another one had it, whose clock is a second ahead."""


class Leading:
    def __init__(self, me: str, duration_s: float) -> None:
        self._me = me
        self._duration_s = duration_s
        self._seen = ("", 0.0)
        """The version that was seen last, and since when."""
        self._highest = 0
        self.token = 0
        self.trusted_until = 0.0
        """By the monotonic clock. What is done for this leadership is done before."""

    def read(self, lease: dict[str, Any], now: float, wall: float, *, renews: bool) -> dict[str, Any] | None:
        """What is to be written over this Lease, as it was read now; None: it is another's. `renews`: the leadership
        goes on.
        """
        spec, version = lease.get("spec") or {}, lease["metadata"].get("resourceVersion", "")
        acquired = _token(spec.get("acquireTime", _time(0)))
        self._highest = max(self._highest, self.token, acquired if acquired < NO_TOKEN else 0)
        put_back = renews and newer(self._seen[0], version)  # the API server, to an older state: all is seen anew
        if version != self._seen[0] and not put_back:
            self._seen = version, now
        holder, duration_s = spec.get("holderIdentity"), spec.get("leaseDurationSeconds") or self._duration_s
        if put_back or (renews and not (holder == self._me and acquired == self.token)):
            return None
        if holder and holder != self._me and now < self._seen[1] + duration_s:
            return None
        token = self.token if renews else max(self._highest, int(wall) + (0 if version else UNSEEN_S)) + 1
        times = {"acquireTime": _time(token), "renewTime": _time(wall)}
        return {"holderIdentity": self._me, "leaseDurationSeconds": max(round(self._duration_s), 1), **times}

    def wrote(self, lease: dict[str, Any], began: float, now: float) -> None:
        """It is this one's, and was asked to be from `began` on."""
        self._seen = lease["metadata"]["resourceVersion"], now
        self.token = _token(lease["spec"]["acquireTime"])
        self.trusted_until = began + self._duration_s * 2 / 3


def _token(acquired: str) -> int:
    return int(datetime.fromisoformat(acquired).timestamp())


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
