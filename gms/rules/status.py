"""The public status of one device. Pure; it is given the parts that it reads, and decides nothing."""

from gms.rules import messages as m
from gms.rules.region import Device, Region
from gms.rules.sessions import Client
from sidecar.machine.context import rfc3339

MOST_CLIENTS_SHOWN = 100
MOST_SENTENCES = 50
_WORST_FIRST = ("RECOVERING", "RW", "EMPTY", "PARKED", "COMMITTED", "RO")


def status_of(device: Device, free: int, blocks: dict[int, tuple[int, int]]) -> m.Status:
    """`free`: what the device has free; `blocks`: what pools' tables say."""
    clients, config = device.sessions.clients, device.config
    regions = [region.status(blocks) for region in device.regions.values()]
    weights = [each for each in regions if each.policy == "shared"]
    blank = [each for each in weights if device.regions[each.key].is_blank and not device.regions[each.key].clients]
    shown = [each for each in regions if each not in blank or len(weights) == 1]
    worst = min(
        (each for each in weights if each in shown), key=lambda each: _WORST_FIRST.index(each.state), default=weights[0]
    )
    return m.Status(
        state=worst.state,  # type: ignore[arg-type]
        device=config.device,
        clients=[_client(device, client) for client in list(clients.values())[:MOST_CLIENTS_SHOWN]],
        clients_total=len(clients),
        generation=worst.generation,
        hash=worst.hash,
        bytes=sum(each.bytes for each in weights),
        slabs=sum(each.slabs for each in weights),
        tensors=sum(each.tensors for each in weights),
        free=free,
        capacity=config.capacity,
        parked={key: region.in_host_memory for key, region in device.regions.items() if region.in_host_memory},
        host_memory=config.host_memory,
        waiting_for=_cut([sentence for region in device.regions.values() for sentence in _waiting_for(device, region)]),
        pending_drops=_cut(device.holders.pending),
        alarms=list(device.context.alarms.values()),
        events=dict(device.context.counts),
        server_incarnation=config.server_incarnation,
        server_pid=config.server_pid,
        since=worst.since,
        regions=shown,
    )


def _client(device: Device, client: Client) -> m.Client:
    wanted = client.request.message if client.request is not None else None
    return m.Client(
        engine_id=client.engine_id,
        pid=client.pid,
        region=client.key,
        doing=device.regions[client.key].doing(client).value,
        since=rfc3339(client.since),
        wants="" if wanted is None else wanted.mode if isinstance(wanted, m.Open) else "owner",
        holds=device.holders.layouts(client.conn),
    )


def _waiting_for(device: Device, region: Region) -> list[str]:
    sentences = []
    for client, request in region.queue:
        why, _ = region.why_waits(client, request)
        wants = request.message.mode if isinstance(request.message, m.Open) else f"pool {region.key}"
        sentences.append(f"{client} waits ({wants}): {why}")
    for client in region.clients:
        wanted = device.making.of(client.conn)
        if wanted is not None:
            sentences.append(f"{client} waits for memory: {wanted.bytes} bytes are needed, {wanted.free} are free")
    return sentences


def _cut(sentences: list[str]) -> list[str]:
    if len(sentences) <= MOST_SENTENCES:
        return [sentence[:2000] for sentence in sentences]
    return [*_cut(sentences[: MOST_SENTENCES - 1]), f"and {len(sentences) - MOST_SENTENCES + 1} more"]


def summary(device: Device) -> str:
    """The state in a sentence, for a report of a mistake."""
    words = [f"newest generation {device.generations.newest}"]
    for region in device.regions.values():
        words += region.summary()
    words += [
        f"{client} is {device.regions[client.key].doing(client).value} on {conn}"
        for conn, client in list(device.sessions.clients.items())[:10]
    ]
    return ", ".join(words)
