"""The public status of one device's weights. Pure; it reads the machine and decides nothing."""

from typing import TYPE_CHECKING, Literal

from gms import messages as m
from gms.sessions import Client, Doing
from sidecar.context import rfc3339

if TYPE_CHECKING:
    from gms.machine import Machine

State = Literal["EMPTY", "RW", "COMMITTED", "RO", "RECOVERING"]


def state(machine: "Machine") -> State:
    if machine.draft is not None:
        return "RW"
    if machine.committed is not None:
        return "RO" if machine.readers else "COMMITTED"
    return "RECOVERING" if machine.recovery.awaits else "EMPTY"


def status_of(machine: "Machine", free: int = 0) -> m.Status:
    """`free`: what the device has free, which only the shell can know."""
    layout, draft, awaited = machine.committed, machine.draft, machine.recovery.awaited
    slabs = [slab for each in (layout, draft) if each is not None for slab in each.slabs]
    return m.Status(
        state=state(machine),
        device=machine.config.device,
        clients=[_client(client) for client in machine.clients.values()],
        generation=layout.generation if layout else awaited.generation if awaited else 0,
        hash=layout.hash if layout else awaited.hash if awaited else "",
        bytes=sum(slab.size for slab in slabs),
        slabs=len(slabs),
        tensors=layout.tensors if layout else 0,
        free=free,
        capacity=machine.config.capacity,
        waiting_for=_waiting_for(machine),
        pins=machine.pins.named(),
        alarms=list(machine.context.alarms.values()),
        events=dict(machine.context.counts),
        server_incarnation=machine.config.server_incarnation,
        server_pid=machine.config.server_pid,
        since=machine.since,
    )


def _client(client: Client) -> m.Client:
    wish = client.wish
    return m.Client(
        engine_id=client.engine_id,
        pid=client.pid,
        doing=client.doing.value,
        since=rfc3339(client.since),
        wants=wish.open.mode if wish is not None else "",
        holds=sorted(client.holds),
    )


def _waiting_for(machine: "Machine") -> list[str]:
    sentences = []
    for client in machine.queue:
        if client.doing is Doing.WAITING and client.wish is not None:
            why = machine.why_not(client.wish.open) or "its turn"
            sentences.append(f"{client} waits ({client.wish.open.mode}): {why}")
    draft = machine.draft
    if draft is not None and draft.create is not None:
        sentences.append(
            f"{draft.writer} waits for memory: {draft.create.size} bytes are needed, {draft.create.free} are free"
        )
    return sentences
