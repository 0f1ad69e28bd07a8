"""The public status of one device's weights in words and columns, for a person who was woken by it.

Pure: a `Status` and the time go in, lines come out. First what is wrong, then who has the weights and who waits for
what, and last what to do. What this file may not do: read anything, or say more than the status does. Who prints it:
`gmsctl.py`.
"""

from collections.abc import Sequence
from datetime import datetime

from gms import layout as lay
from gms.rules import messages as m
from sidecar.terminal import table
from sidecar.terminal.formatting import PLAIN, Paint, Tone, ago, size

MARGIN = 10
_MARK = "  - "
_TONES = {"COMMITTED": Tone.GOOD, "RO": Tone.GOOD, "RECOVERING": Tone.BAD}
_TONES |= dict.fromkeys(("EMPTY", "RW", "PARKED"), Tone.CARE)
_WORDS = {"writing": "writes", "reading": "reads", "asleep": "asleep", "waiting": "waits", "watching": "connected"}

_POOL_WORDS = {
    "EMPTY": "no memory",
    "MAKING": "memory is being made",
    "FREE": "no process owns it",
    "AWAITED": "to be handed back to this new server",
}


# -- the whole picture ---------------------------------------------------------------------------------------------


def status_lines(status: m.Status, now: datetime, paint: Paint = PLAIN) -> list[str]:
    waiting = [paint("waits for", Tone.STRONG), *(_MARK + why for why in status.waiting_for)]
    drops = [paint("has still to drop memory that is gone", Tone.BAD), *(_MARK + why for why in status.pending_drops)]
    blocks = [
        [_headline(status, now, paint)],
        [paint(f"ALARM  {alarm}", Tone.BAD) for alarm in status.alarms],
        waiting if status.waiting_for else [],
        drops if status.pending_drops else [],
        [*_clients(status, now, paint), *_rest(status)],
        _advice(status),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


def _headline(status: m.Status, now: datetime, paint: Paint) -> str:
    state = paint(status.state, _TONES.get(status.state, Tone.BAD))
    return f"{state}  {paint(status.device, Tone.STRONG)}: {_what(status)}, {_lasting(status.since, now)}"


def _what(status: m.Status) -> str:
    """What stands in the headline: of several models it is said of one, which is named."""
    models = [region for region in status.regions if region.policy == "shared"]
    if len(models) > 1:
        told = (status.state, status.generation)
        one = next((model for model in models if (model.state, model.generation) == told), models[0])
        clients = [client for client in status.clients if client.region == one.key]
        return f"{one.key}: {_of_one(one, clients)}"
    return _of_one(status, status.clients)


def _of_one(status: m.Status | m.RegionStatus, clients: Sequence[m.Client]) -> str:
    readers = sum(client.doing == "reading" for client in clients)
    if status.state == "RW":
        kept = f"; layout {status.generation} stays until the new one is committed" if status.generation else ""
        return f"a process writes ({size(status.bytes)} in {_count(status.slabs, 'slab')}{kept})"
    if status.state == "RECOVERING":
        return f"the server is new: layout {status.generation} is to be handed back by a process that has it"
    if status.state == "EMPTY":
        return "no weights are committed, and no process writes any"
    if status.state == "PARKED":
        return f"weights are parked in host memory (generation {status.generation}): an engine that wakes has them back"
    who = f"read by {_count(readers, 'process')}" if readers else "no process reads them at the moment"
    return f"weights are committed (generation {status.generation}), {who}"


def _clients(status: m.Status, now: datetime, paint: Paint) -> list[str]:
    order, several = list(_WORDS), len(status.regions) > 1
    cells = [
        (
            paint(_WORDS[client.doing], Tone.STRONG),
            client.engine_id,
            f"process {client.pid}",
            _lasting(client.since, now),
            f"wants {client.wants}" if client.wants else "",
            f"has memory {', '.join(map(str, client.holds))}" if client.holds else "",
            f"of {client.region}" if several else "",
        )
        for client in sorted(status.clients, key=lambda client: order.index(client.doing))
    ]
    if not cells:
        return [_row("clients", "none")]
    lines = table.lines(cells, least=(MARGIN,))
    if status.clients_total > len(cells):
        lines.append(_row("...", f"the first {len(cells)} of {status.clients_total}"))
    return lines


def _lasting(since: str, now: datetime) -> str:
    return f"for {ago(since, now).removesuffix(' ago')}"


def _rest(status: m.Status) -> list[str]:
    lines = [line for region in status.regions for line in _region(region, status.parked.get(region.key, 0))]
    lines.append(_row("memory", f"{size(status.free)} free of {size(status.capacity)}"))
    if status.parked:
        taken, most = size(sum(status.parked.values())), size(status.host_memory)
        lines.append(_row("parked", f"{taken} in host memory, of the {most} that parked weights may take"))
    lines.append(_row("server", f"process {status.server_pid}, incarnation {status.server_incarnation}"))
    return lines


def _region(region: m.RegionStatus, parked: int) -> list[str]:
    if region.policy == "exclusive":
        whose = f"owned by {region.owner}" if region.owner else _POOL_WORDS.get(region.state, region.state)
        blocks = f", {region.blocks} of {region.blocks_total} blocks would be reused" if region.blocks_total else ""
        memory = f", {size(region.bytes)}{blocks}" if region.bytes else ""
        lines = [_row("pool", f"{region.key}: {whose}{memory}, newest token {region.token}")]
        if region.doubt:
            lines.append(_row("", f"its contents are handed on to no process: {region.doubt}"))
        return lines
    name = "" if region.key == m.WEIGHTS else f"{region.key}: {region.state}, "
    tensors = f", {_count(region.tensors, 'tensor')}" if region.tensors else ""
    if region.state == "PARKED":
        lines = [_row("weights", f"{name}{size(parked)} in host memory{tensors}")]
    elif region.bytes or region.slabs or name:
        lines = [_row("weights", f"{name}{size(region.bytes)} in {_count(region.slabs, 'slab')}{tensors}")]
    else:
        lines = []
    if region.generation:
        lines.append(_row("layout", f"generation {region.generation}, hash {region.hash}"))
    return lines


def _row(label: str, text: str) -> str:
    return f"{label:<{MARGIN}}  {text}".rstrip()


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


# -- what to do ----------------------------------------------------------------------------------------------------

TO_DO = (
    # Words of an alarm or a reason, and what to do about it. The first that fits is said.
    ("does not answer", "a process that is stopped (state T in ps) keeps its memory: kill -CONT it, or kill -9"),
    ("can't be written", "make room or mend the permissions in DIR/gms; the server tries again by itself"),
    ("can't be read", "see DEVICE.json.unreadable-* in DIR/gms; engines that read the old weights must be restarted"),
    ("was not handed back", "no process has the weights: let an engine that may write them start; it loads them anew"),
    (
        "waits for memory",
        "`nvidia-smi`, or `fuser -v` on the host device's file, shows who has that memory",
    ),
    ("and was asked to drop it", "it does so within milliseconds unless it is stopped: look at that process"),
    ("is to be handed back", "nothing yet: a process that has kept it is back within a second; else the window ends"),
)


def _advice(status: m.Status) -> list[str]:
    todo: list[str] = []
    for reason in [*status.alarms, *status.pending_drops, *status.waiting_for]:
        advice = next((text for words, text in TO_DO if words in reason), "")
        if advice and advice not in todo:
            todo.append(advice)
    if status.state == "EMPTY" and not status.clients:
        todo.append("start an engine that may write, or be the writer: gmsctl put FILE.safetensors")
    if status.state == "RECOVERING" and not todo:
        todo.append("nothing yet: a process that has the layout is back within a second; else the window ends")
    return ["what to do", *(_MARK + text for text in todo)] if todo else []


# -- one line ------------------------------------------------------------------------------------------------------


def change_line(status: m.Status, paint: Paint = PLAIN) -> str:
    """A state in a line, for `watch`."""
    parts = [paint(f"{status.state:<10}", _TONES.get(status.state, Tone.BAD)), status.device]
    if status.generation:
        parts.append(f"generation {status.generation} ({size(status.bytes)});")
    doing: dict[str, list[str]] = {}
    for client in status.clients:
        doing.setdefault(client.doing, []).append(client.engine_id)
    parts.append(
        "; ".join(f"{what}: {', '.join(doing[what])}" for what in _WORDS if what in doing) or "no client is here"
    )
    if status.waiting_for:
        parts.append(f"; waits for: {'; '.join(status.waiting_for)}")
    line = " ".join(parts).replace(" ;", ";")
    return "".join([line, *(" " + paint(f"ALARM {alarm}", Tone.BAD) for alarm in status.alarms)])


def printable(text: str) -> str:
    """A name that comes from outside, in one line and without commands for the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# -- tensors -------------------------------------------------------------------------------------------------------


def tensor_fields(tensor: lay.Tensor) -> dict[str, str | int | list[int]]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "slab": tensor.slab,
        "offset": tensor.offset,
        "bytes": lay.extent_bytes(tensor),
        "stride": list(tensor.stride),
        "kind": tensor.kind,
    }


def tensor_lines(layout: lay.Layout) -> list[str]:
    """A heading, and a line for each tensor, in order."""
    heading = ("slab", "offset", "bytes", "dtype", "shape", "name")
    rows = [
        (
            tensor.slab,
            tensor.offset,
            lay.extent_bytes(tensor),
            tensor.dtype,
            "x".join(map(str, tensor.shape)) or "scalar",
            printable(tensor.name),
        )
        for tensor in layout.tensors
    ]
    return table.lines([heading, *rows], right=(0, 1, 2))
