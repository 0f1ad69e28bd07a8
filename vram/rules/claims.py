"""What a holder says that it has, and what it is worth (rule V10 of `machine.py`). Who may come in with it:
`evidence/rules/admission.py`.

Pure. What it claims is so, unless the lease is another tree's by now. What it has besides, by the file, it was never
told of: that ends, or shrinks to what it claims.
"""

from typing import Any

from evidence.rules.incarnation import Incarnation
from sidecar.terminal.names import incarnation_name
from vram.rules import messages as m
from vram.rules.asking import Asking
from vram.rules.books import Books, Part
from vram.rules.ends import Ends
from vram.rules.grants import Grants
from vram.rules.leases import Lease, minus, some


class Claims(Part):
    untrue = "claimed a lease that it does not have"

    def __init__(self, books: Books, grants: Grants, asking: Asking, ends: Ends) -> None:
        super().__init__(books)
        self.grants = grants
        self.asking = asking
        self.ends = ends

    def why_not(self, hello: m.Register) -> str:
        name = incarnation_name(hello.engine_id, hello.incarnation)
        for claim in hello.claims:
            lease = self.leases.all.get(claim.lease)
            if lease is not None and (lease.tree is None or lease.tree.name != name):
                return f"lease {claim.lease} is another tree's: its holder was proven gone"
        return ""

    def may_keep(self, hello: Any) -> bool:
        return isinstance(hello, m.Register) and bool(hello.claims) and not self.why_not(hello)

    def let_in(self, who: Incarnation, hello: m.Register) -> None:
        self.ends.forget_loss(who)
        self.grants.say_nothing_to(who)
        claimed = {claim.lease: claim for claim in hello.claims}
        for lease in self.leases.of_tree(who.name):
            bytes = some(claimed[lease.number].bytes) if lease.number in claimed else {}
            if bytes == lease.bytes:
                continue
            self.context.note("never_told", lease=lease.number, name=lease.name)
            if lease.inherited and not bytes:
                self.ends.returns.outlive(lease) if lease.outlives else self.leases.pass_on(lease, None)
                continue
            returning = minus(lease.returning, minus(bytes, lease.bytes))  # what it takes for its own isn't on its way
            before = lease.counted
            self.leases.change(lease, bytes=bytes, returning=returning)
            self.devices.claimed(minus(lease.counted, before))
        for claim in hello.claims:
            self._take_up(who, claim)
        for name in hello.heirs:
            self.heirs.add(name, who)
            self.disk.now()

    def keep(self, who: Incarnation, hello: m.Register, why: str) -> None:
        for claim in hello.claims:
            self._take_up(who, claim)
        self.context.alarm("version", f"{who.engine_id} has its leases and goes on, but {why}: finish the upgrade")

    def _take_up(self, who: Incarnation, claim: m.Claim) -> None:
        lease = self.leases.all.get(claim.lease)
        if lease is None and some(claim.bytes):
            lease = self.leases.add(Lease(claim.lease, claim.name, who, some(claim.bytes)))
            self.devices.claimed(lease.bytes)
            self.context.note("claimed", lease=lease.number, name=lease.name)
        if lease is not None:
            lease.priority, lease.evictable, lease.outlives = claim.priority, claim.evictable, bool(claim.outlives)
            lease.used_at, lease.inherited = self.context.now - claim.unused_s, False
            self.asking.say(lease)
