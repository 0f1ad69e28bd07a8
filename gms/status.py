"""The public status of one device's weights. Pure; it is given the parts that it reads, and decides nothing."""

from dataclasses import dataclass

from gms import events as e
from gms import messages as m
from gms.admission import Admission
from gms.context import Context
from gms.drops import Drops
from gms.holders import Holders
from gms.pool_machine import PoolMachine
from gms.sessions import Client, Sessions
from gms.weights import Weights
from gms.writing import Writing
from sidecar.context import rfc3339

MOST_CLIENTS_SHOWN = 100
MOST_SENTENCES = 50


@dataclass(frozen=True)
class Parts:
    config: e.Config
    context: Context
    weights: Weights
    holders: Holders
    sessions: Sessions
    admission: Admission
    writing: Writing
    drops: Drops
    pools: PoolMachine


def status_of(parts: Parts, since: str, free: int, blocks: dict[int, tuple[int, int]]) -> m.Status:
    """`free`: what the device has free; `blocks`: what pools' tables say."""
    weights, sessions = parts.weights, parts.sessions
    generation, hash = weights.there
    slabs = [slab for each in (weights.committed, weights.draft) if each is not None for slab in each.slabs]
    return m.Status(
        state=weights.phase.value,
        device=parts.config.device,
        clients=[_client(parts, client) for client in list(sessions.clients.values())[:MOST_CLIENTS_SHOWN]],
        clients_total=len(sessions.clients),
        generation=generation,
        hash=hash,
        bytes=sum(slab.size for slab in slabs),
        slabs=len(slabs),
        tensors=weights.committed.tensors if weights.committed is not None else 0,
        free=free,
        capacity=parts.config.capacity,
        waiting_for=_cut(_waiting_for(parts)),
        pending_drops=_cut(parts.drops.pending),
        alarms=list(parts.context.alarms.values()),
        events=dict(parts.context.counts),
        server_incarnation=parts.config.server_incarnation,
        server_pid=parts.config.server_pid,
        since=since,
        pools=parts.pools.status(blocks),
    )


def _client(parts: Parts, client: Client) -> m.Client:
    return m.Client(
        engine_id=client.engine_id,
        pid=client.pid,
        doing=parts.sessions.doing(client).value,
        since=rfc3339(client.since),
        wants=client.request.open.mode if client.request is not None else "",
        holds=parts.holders.layouts(client.conn),
    )


def _waiting_for(parts: Parts) -> list[str]:
    sentences = []
    for client, request in parts.sessions.queue:
        why = parts.admission.verdict(request.open).why_not or "its turn"
        sentences.append(f"{client} waits ({request.open.mode}): {why}")
    wanted = parts.writing.wanted
    if wanted is not None:
        writer = parts.sessions.writer
        sentences.append(f"{writer} waits for memory: {wanted.size} bytes are needed, {wanted.free} are free")
    return sentences + parts.pools.waiting_for


def _cut(sentences: list[str]) -> list[str]:
    if len(sentences) <= MOST_SENTENCES:
        return [sentence[:2000] for sentence in sentences]
    return [*_cut(sentences[: MOST_SENTENCES - 1]), f"and {len(sentences) - MOST_SENTENCES + 1} more"]


def summary(parts: Parts) -> str:
    """The state in a sentence, for a report of a mistake."""
    weights, sessions = parts.weights, parts.sessions
    layout, draft, awaited = weights.committed, weights.draft, weights.awaited
    words = [f"phase {weights.phase.value}", f"newest generation {weights.newest_generation}"]
    if layout is not None:
        words.append(f"layout {layout.generation} of {len(layout.slabs)} slabs")
    if draft is not None:
        words.append(f"connection {draft.writer} writes generation {draft.generation}, {len(draft.slabs)} slabs so far")
    if awaited is not None:
        words.append(f"layout {awaited.generation} of {len(awaited.slabs)} slabs is awaited")
    words.append(f"readers {sorted(weights.readers)[:20]}")
    words += [
        f"{client} is {sessions.doing(client).value} on {conn}" for conn, client in list(sessions.clients.items())[:10]
    ]
    return ", ".join(words)
