"""What can go wrong between a process and the device's GMS."""


class GmsError(Exception):
    """What went wrong between this process and the device's GMS."""


class Refused(GmsError):
    """The server said no, and why."""


class NoPlace(Refused):
    """The server has no room for one more process. It is tried again every second."""


class NoCommonProtocol(Refused):
    """The server is of another version, and no protocol is spoken by both. It is tried again every second."""


class NotInTime(GmsError, TimeoutError):
    """It did not happen within the time that the caller gave it."""


class NoRoom(GmsError):
    """The device has not that much memory, or not now."""


class StaleLayout(GmsError):
    """The weights are other ones by now, laid out in another way: views of the old ones have to be made anew."""


class Lost(GmsError):
    """A writer's work is gone: the server died before the commit."""


class Asleep(GmsError):
    """Nothing is mapped here at the moment."""


class Damaged(GmsError):
    """The contents of weights are no longer what was committed."""


class Parked(Refused):
    """The weights lie in host memory, and have to be brought back to the device before they can be read."""


class PoolOwned(Refused):
    """Another process owns the pool, and lives."""


class PoolStale(Refused):
    """An owner was let in with a newer token: the lock is another's by now."""


class PoolDiffers(Refused):
    """The pool has another shape; `replace` gives it up."""


class PoolsOff(Refused):
    """The server has no pools on this device; the text says why."""


_BY_REASON: dict[str, type[GmsError]] = {
    "time_out": NotInTime,
    "no_memory": NoRoom,
    "too_large": NoRoom,
    "owned": PoolOwned,
    "older": PoolStale,
    "differs": PoolDiffers,
    "off": PoolsOff,
    "parked": Parked,
    "protocol": NoCommonProtocol,
    "place": NoPlace,
}


def error_of(reason: str) -> type[GmsError]:
    """What a request raises that was refused for that reason (`messages.Reason`), or a problem about that."""
    return _BY_REASON.get(reason, Refused)
