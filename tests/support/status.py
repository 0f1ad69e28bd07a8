"""Short questions to the lock's public status."""

from lockserver.rules import messages as m


def holder_of(status: m.Status) -> m.HolderState:
    """There has to be one."""
    assert status.holder is not None, f"no engine holds the lock: {status}"
    return status.holder
