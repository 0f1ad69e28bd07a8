"""Who may own a pool, and what it gets: the contents as they are, new memory, or a refusal.

Pure: a claim goes in, a verdict comes out, and nothing is changed. This is the only place where it is decided.

What is handed on with its contents may be written by no other process. The lock's grant says so of the owner before
(`proven`); this server says so by itself, of the process that it let in. Where either can't, the contents are worth
nothing: there is new memory, and the old is never written by the new owner.
"""

from enum import Enum
from typing import NamedTuple

from gms.rules import messages as m
from gms.rules.pools import Phase, Pool
from gms.rules.sessions import Client


class Do(Enum):
    WAIT = "wait"
    REFUSE = "refuse"
    ADOPT = "hand on the memory and its contents"
    OWN_AGAIN = "it owns it already"
    MAKE = "make memory"
    GIVE_UP_AND_MAKE = "give the old memory up, and make new"


class ClaimVerdict(NamedTuple):
    do: Do
    why: str = ""
    """Why it waits, or is refused."""
    reason: m.Reason = "not_now"
    """Why it is refused, now or once it has waited in vain."""
    why_empty: str = ""
    """Why it gets new memory."""


def verdict(pool: Pool, client: Client, message: m.ClaimPool, *, may_come_back: bool) -> ClaimVerdict:
    """`may_come_back`: this server is so new that a process that has the memory may still bring it."""
    if message.token < pool.token:
        why = f"pool {pool.key} was given to token {pool.token}, and {message.token} is older: the lock is another's"
        return ClaimVerdict(Do.REFUSE, why, "older")
    owner = pool.owner
    if owner is not None and not owner.is_the_same(client.identity, client.local_pid):
        return ClaimVerdict(Do.WAIT, f"{owner.name} owns pool {pool.key}, and its process lives", "owned")
    if pool.phase is Phase.MAKING:
        return ClaimVerdict(Do.WAIT, f"memory of pool {pool.key} is being made for another claim", "owned")
    if pool.phase is Phase.EMPTY:
        return ClaimVerdict(Do.MAKE, why_empty="new")
    if pool.phase is Phase.AWAITED and owner is not None:
        return ClaimVerdict(Do.WAIT, f"pool {pool.key} is to be handed back by its owner, which claims it", "stale")
    fits = pool.shape == m.shape_of(message)
    if not fits and not message.replace:
        return ClaimVerdict(Do.REFUSE, difference(pool, m.shape_of(message)), "differs")
    if owner is not None:
        if fits:
            return ClaimVerdict(Do.OWN_AGAIN)
        return ClaimVerdict(Do.REFUSE, f"{owner.name} owns pool {pool.key}: release it before it is replaced", "owned")
    if not fits:
        return ClaimVerdict(Do.GIVE_UP_AND_MAKE, why_empty="replaced")
    if pool.doubt:
        return ClaimVerdict(Do.GIVE_UP_AND_MAKE, why_empty=pool.doubt_kind)
    if not message.proven:
        return ClaimVerdict(Do.GIVE_UP_AND_MAKE, why_empty="unproven")
    if pool.phase is Phase.AWAITED:
        if may_come_back:
            return ClaimVerdict(Do.WAIT, f"this server is new, and pool {pool.key} may still be handed back")
        return ClaimVerdict(Do.GIVE_UP_AND_MAKE, why_empty="new")
    return ClaimVerdict(Do.ADOPT)


def difference(pool: Pool, wanted: m.Shape) -> str:
    """Between what there is and what is wanted, for people."""
    there = pool.shape
    if there is None:
        return f"pool {pool.key} has no memory"
    parts = []
    if there.digest != wanted.digest:
        parts.append(f"its digest is {there.digest[:16]}, and {wanted.digest[:16]} is wanted")
    if there.sizes != wanted.sizes:
        parts.append(
            f"it has {len(there.sizes)} ranges of {there.bytes} bytes in all, and {len(wanted.sizes)} of "
            f"{wanted.bytes} are wanted"
        )
    if there.table_size != wanted.table_size:
        parts.append(f"its table has {there.table_size} bytes, and {wanted.table_size} are wanted")
    return f"pool {pool.key} has another shape: {'; '.join(parts)}. Claim it with `replace` to give it up"
