"""models.yaml: what may stand in it, how it is read, and everything that can be wrong with it, in sentences.

    file = read(path)                       # raises BadFile: all that is wrong with its form
    for sentence in wrong(file): ...        # what is wrong with what it says
    schema()                                # for editors: JSON schema

What this file may not do: start anything, or know how things stand. PyYAML is an extra, loaded when a file is read.
"""

import glob
import json
import os
import re
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gms.memory.host_device import device_size
from pool.entries import (
    MOST_ENTRY_BYTES,
    MOST_MODELS,
    Device,
    DrainSeconds,
    Entry,
    Flags,
    Limits,
    Name,
    Profile,
    Remote,
    Seconds,
    Size,
)
from pool.rules.events import HostRules, ModelRules
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.formatting import size as in_words
from sidecar.terminal.names import NAME, NAME_IN_WORDS, device_name, is_meant
from sidecar.terminal.settings import BadValue, host_port, size_bytes

MOST_BYTES, MOST_NODES = 1 << 20, 100_000
MOST_TOGETHER = 4 << 20
"""Bytes of all entries, in JSON: a door is told them in one frame. Aliases in the file, and what is launched, make more
of them than the file has bytes.
"""
NAMED, ALL_GPUS = "--served-model-name", "cuda"
PARTS = ("lock", "ledger", "gms", "pool", "door", "up", "server.lock")
"""What the programs of `failover models up` are called, among which its models are, and a file beside their locks."""
KNOWN_ENGINES = ("vllm", "reference", "command")
OF_DOOR = {
    "x_client_id": "clients: of a profile",
    "x_priority": "priority:",
    "x_deadline_ms": "it in each request",
    "x_keep_alive_s": "keep_alive_s:",
}
_OF_WEIGHTS = ("engine", "devices")
_KINDS = {
    "array": "a list such as [a, b]",
    "object": "a mapping of names to values",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
"""What msgspec calls them, and people."""
GGUF, SAFETENSORS = 1.1, 1.3
"""What weights of so many bytes take in a device, with what else is there: a first estimate, until it is measured."""


class BadFile(Exception):
    """It can't be read; each argument is a sentence."""


class ModelsFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host, and all its models."""

    models: Annotated[dict[Name, Entry], Meta(max_length=MOST_MODELS, description="by name")] = {}
    devices: Annotated[
        list[Device], Meta(description="host:NAME, or GPUs by UUID; empty: all GPUs, or one host device without any")
    ] = []
    capacity: Annotated[Size, Meta(description="how large each host device is")] = "1GiB"
    keep_free: Annotated[Size, Meta(description="of each device, for what no lease counts")] = 0
    listen: Annotated[str, Meta(description="HOST:PORT where clients come")] = "127.0.0.1:8000"
    metrics: Annotated[str, Meta(description="HOST:PORT of the pool's metrics; empty: none")] = ""
    default: Annotated[str, Meta(description="the model of requests that name none, to which the host returns")] = ""
    default_after_s: Annotated[Seconds, Meta(description="after so long without requests for others")] = 30.0
    swap_share: Annotated[
        float, Meta(ge=0.01, le=0.9, description="of a device's time that swaps in the middle of answers may take")
    ] = 0.1
    drain_s: Annotated[DrainSeconds, Meta(description="how long answers may go on before a swap pauses them")] = 1.0
    ageing_s: Annotated[Seconds, Meta(description="what has waited for so long is among the most urgent")] = 60.0
    longest_wait_s: Annotated[
        Seconds | None, Meta(description="a model waits no longer, whatever share of time swaps take then")
    ] = None
    asleep: Annotated[
        dict[str, Size],
        Meta(description="how much engines that are asleep may keep together, by device and `host`; the rest is ended"),
    ] = {}
    host_memory: Annotated[
        Size,
        Meta(description="how much of the host's memory weights may take that make room on a device for others, all "
             "devices together: each has an equal share; empty: half of what is left at the start"),
    ] = ""  # fmt: skip
    allow_cloud_fallback: Annotated[bool, Meta(description="until it is changed by PUT /failover/config")] = True
    api_launch: Annotated[
        bool, Meta(description="models may be launched by POST /failover/models, which runs programs on this host")
    ] = False
    profiles: Annotated[list[Profile], Meta(max_length=1000)] = []

    def host_rules(self) -> HostRules:
        said = {name: getattr(self, name) for name in HostRules.__struct_fields__}
        return HostRules(**said | {"asleep": {device: size(most) for device, most in self.asleep.items()}})

    @property
    def flags(self) -> Flags:
        return Flags(allow_cloud_fallback=self.allow_cloud_fallback)


def size(text: str | int) -> int:
    """Raises BadValue."""
    return text if isinstance(text, int) else size_bytes(text)


def model_rules(entry: Entry, devices: Iterable[str]) -> ModelRules:
    """`devices`: all of the host's. Raises BadValue."""
    on = tuple(entry.devices) or tuple(devices)
    if isinstance(entry.memory, dict):
        known = {device: size(most) for device, most in entry.memory.items()}
    else:
        each = size(entry.memory) if entry.memory else estimated(entry) // max(len(on), 1)
        known = dict.fromkeys(on, each) if each else {}
    return ModelRules(entry=entry, devices=on, bytes=known)


def schema() -> str:
    return json.dumps(msgspec.json.schema(ModelsFile), indent=1)


# -- reading -------------------------------------------------------------------------------------------------------


def read(path: Path) -> ModelsFile:
    """Raises BadFile."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadFile(f"it can't be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise BadFile(f"it is larger than {in_words(MOST_BYTES)}")
    return parsed(data)


def parsed(data: bytes) -> ModelsFile:
    """Raises BadFile."""
    document = _yaml(data)
    if document is None:  # an editor on a full disk leaves it so, and every model would be ended
        raise BadFile("it is empty; a file without models says `models: {}`")
    if not isinstance(document, dict):
        raise BadFile("the file is no mapping: it begins with `models:`, say")
    problems = list(_unknown(document, ModelsFile, ""))
    models = document.get("models") or {}
    if not isinstance(models, dict):
        raise BadFile("models: is no mapping of names to entries")
    entries: dict[str, Entry] = {}
    for name, said in models.items():
        if not re.fullmatch(NAME, str(name)):
            problems.append(_no_name(name))
            continue
        said = {} if said is None else said
        if not isinstance(said, dict):
            problems.append(f"{name}: its entry is no mapping of fields to values")
            continue
        problems += _unknown(said, Entry, f"{name}: ")
        try:
            entries[str(name)] = msgspec.convert({**said, "name": str(name)}, Entry)
        except msgspec.ValidationError as error:
            problems.append(f"{name}: {_said(error)}")
    rest = {key: value for key, value in document.items() if key != "models" and not str(key).startswith("x-")}
    try:
        found = msgspec.convert({**rest, "models": {}}, ModelsFile)
    except msgspec.ValidationError as error:
        problems.append(_said(error))
    if problems:
        raise BadFile(*problems)
    return msgspec.structs.replace(found, models=entries)


def _no_name(name: object) -> str:
    return f"models: {name!r} is no name for a model ({NAME_IN_WORDS}); aliases may be anything"


def _said(error: Exception) -> str:
    what, _, where = str(error).partition(" - at `$.")
    what = re.sub(r"^Object missing required field `(\w+)`", r"it lacks \1", what)
    what = re.sub(r"^Expected `([^`]+)`(?:, got `(\w+)`)?", _has_to_be, what)
    return f"{where.rstrip('`').removesuffix('[...]')}: {what}" if where else what


def _has_to_be(said: re.Match[str]) -> str:
    wanted, got = [_KINDS.get(kind, kind) for kind in said[1].split(" | ")], _KINDS.get(said[2], said[2])
    quoted = ": put it into quotes" if said[1] == "str" and said[2] in ("int", "float", "bool") else ""
    return f"{f'it is {got}, and' if got else 'it'} has to be {' or '.join(wanted)}{quoted}"


def _unknown(said: Mapping[Any, Any], kind: type[msgspec.Struct], where: str) -> Iterator[str]:
    """A field that there is none of, and what may be meant."""
    fields = [field for field in kind.__struct_fields__ if (kind, field) != (Entry, "name")]
    for key, value in said.items():
        if key not in fields and not str(key).startswith("x-"):  # which is for anchors
            yield f"{where}there is no field {key}{is_meant(str(key), fields) or ': ' + ', '.join(fields)}"
        inner: type[msgspec.Struct] | None = {"limits": Limits, "remote": Remote}.get(str(key))  # type: ignore[assignment]
        if inner is not None and isinstance(value, dict):
            yield from _unknown(value, inner, f"{where}{key}: ")
        if key == "profiles" and isinstance(value, list):
            for number, one in enumerate(value):
                yield from _unknown(one, Profile, f"profiles[{number}]: ") if isinstance(one, dict) else ()


def _yaml(data: bytes) -> Any:
    try:
        import yaml
    except ImportError:
        raise BadFile(f"reading models.yaml needs the package PyYAML: {how_to_get('models')}") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """A key that stands twice is a mistake, and not the last one's."""

    def mapping(loader: Any, node: Any) -> Any:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key.value, str) and key.value in seen:
                raise BadFile(f"line {line}: {key.value} stands twice, first in line {seen[key.value]}")
            seen |= {key.value: line} if isinstance(key.value, str) else {}
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        loader = Loader(data)
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > MOST_NODES:
            raise BadFile(f"its aliases make more than {MOST_NODES} values of it")
        return loader.construct_document(node)
    except yaml.reader.ReaderError as error:
        raise BadFile(f"it is no YAML: unacceptable character at position {error.position}: {error.reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}: " if mark is not None else ""
        raise BadFile(f"{at}{getattr(error, 'problem', None) or error}") from None
    except (UnicodeError, ValueError, RecursionError) as error:
        raise BadFile(f"it is no YAML: {error}") from None


def _expanded(node: Any, known: dict[int, int]) -> int:
    """How many values it makes when each alias is what it stands for."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MOST_NODES + 1  # one that contains itself
    inside = node.value if isinstance(node.value, list) else []
    parts = [part for one in inside for part in (one if isinstance(one, tuple) else (one,))]
    known[id(node)] = total = 1 + sum(_expanded(part, known) for part in parts)
    return total


# -- what is wrong with what it says -------------------------------------------------------------------------------


def wrong(file: ModelsFile, totals: Mapping[str, int], asleep: Container[str] = ()) -> list[str]:
    """A sentence for each mistake. `totals`: how much each device has, where that is known. `asleep`: what a person has
    put to sleep.
    """
    found: list[str] = []
    for key, address in {"listen": file.listen, "metrics": file.metrics}.items():
        try:
            if address or key == "listen":
                host_port(address)
        except BadValue as error:
            found.append(f"{key}: {error}")
    if file.metrics == file.listen:
        found.append(f"metrics: clients come to {file.listen}; give another address")
    for device in file.asleep if file.devices else ():
        if device not in (*file.devices, "host"):
            found.append(f"asleep: {device} is none of this host's{is_meant(device, (*file.devices, 'host'))}")
    for device in file.devices:
        try:
            device_name(device) if device != ALL_GPUS else None
        except BadValue as error:
            found.append(f"devices: {error}; or {ALL_GPUS}, for all GPUs")
    found += [f"devices: {device} is named twice" for device in _twice(file.devices)]
    try:
        device_size(str(file.capacity))
    except BadValue as error:
        found.append(f"capacity: {error}")
    sizes = {
        "keep_free": file.keep_free,
        "host_memory": file.host_memory or 0,
        **file.asleep,
    }
    for key, most in sizes.items():
        try:
            size(most)
        except BadValue as error:
            found.append(f"{key}: {error}")
    found += [] if found else _kept_free(file, totals)
    if found:
        return [*_names(file), *found]
    if len(file.models) > MOST_MODELS:
        found.append(f"there are {len(file.models)} models, and there may be {MOST_MODELS}")
    found += _names(file)
    untellable, together = list[str](), 0
    profiles = {f"profiles[{n}]": one for n, one in enumerate(file.profiles)}
    said: list[tuple[str, Entry | Profile]] = [*file.models.items(), *profiles.items()]
    for what, one in said:
        try:
            if len(msgspec.msgpack.encode(one)) > MOST_ENTRY_BYTES:
                found.append(f"{what}: it takes more than {MOST_ENTRY_BYTES} bytes")
            together += len(msgspec.json.encode(one))
        except (OverflowError, TypeError, ValueError) as error:
            found.append(f"{what}: no door could be told this: {error}")
        untellable += [f"{what}: {sentence}" for sentence in _untellable(one)]
    if together > MOST_TOGETHER:
        found.append(f"all entries together take {in_words(together)}, and may take {in_words(MOST_TOGETHER)}")
    if untellable:
        return [*found, *untellable]
    for entry in file.models.values():
        found += [f"{entry.name}: {sentence}" for sentence in wrong_entry(entry, file, totals)]
    found += [] if found else _pins(file, totals, asleep)
    return found


def _untellable(one: Entry | Profile) -> Iterator[str]:
    """What no program can be told, and what a door takes for itself and passes on to none."""
    for field in one.defaults.keys() & OF_DOOR:
        yield f"defaults: {field} is for the door, and no engine's; say {OF_DOOR[field]}"
    if isinstance(one, Profile):
        return
    said = {"arguments": one.arguments, "command": one.command, "snapshot": [one.snapshot]}
    variables = one.environment
    for key, words in {**said, "environment": [*variables, *variables.values()]}.items():
        if any("\0" in word for word in words):
            yield f"{key}: a NUL is in it, which no program can be told"
    yield from (f"environment: {name!r} is no variable's name" for name in variables if not name or "=" in name)


def _twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _kept_free(file: ModelsFile, totals: Mapping[str, int]) -> Iterator[str]:
    for device, total in totals.items():
        if total <= (kept := size(file.keep_free)):
            yield f"keep_free: {in_words(kept)} leaves nothing of {device} for models, which has {in_words(total)}"


def _names(file: ModelsFile) -> Iterator[str]:
    called: dict[str, str] = {}
    for entry in file.models.values():
        yield from (
            f"{entry.name}: aliases: {name}: a | parts the models of a ladder" for name in entry.aliases if "|" in name
        )
        if not re.fullmatch(NAME, entry.name):  # one that is launched: it becomes a directory's
            yield _no_name(entry.name)
        for name in (entry.name, *entry.aliases):
            other = called.setdefault(name, entry.name)
            if other != entry.name:
                yield f"{name} is a name of {other} and of {entry.name}: a request for it could mean either"
    if file.default and file.default not in file.models:
        named = called.get(file.default)
        what = f"{file.default} is another name of {named}; say {named}"
        yield f"default: {what if named else f'no model is called {file.default}{is_meant(file.default, called)}'}"
    for profile in file.profiles:
        for target in profile.models.values():
            for name in target.split("|"):
                if name not in called:
                    yield f"profiles: no model is called {name}{is_meant(name, called)}"
    clients = [client for profile in file.profiles for client in profile.clients]
    for client in _twice(clients):
        yield f"profiles: {client} is in more than one of them"


def wrong_entry(entry: Entry, file: ModelsFile, totals: Mapping[str, int]) -> Iterator[str]:
    names = {name for one in file.models.values() for name in (one.name, *one.aliases)}
    for name in entry.ladder:
        if name not in names:
            yield f"ladder: no model is called {name}{is_meant(name, names)}"
        elif any(one.ladder and name in (one.name, *one.aliases) for one in file.models.values()):
            yield f"ladder: {name} is a ladder, too; name its models instead"
    if entry.ladder and (entry.command or entry.arguments or entry.remote):
        yield "it is a ladder, and has an engine, too: give the engine an entry of its own"
    if entry.in_order and not entry.ladder:
        yield "in_order: it has no ladder"
    if entry.remote is not None:
        try:
            at = urlsplit(entry.remote.url)
            if not at.hostname or at.port == 0:
                raise ValueError("it names no host")
        except ValueError as error:
            yield f"remote: url: {entry.remote.url} is no address: {error}"
    if not entry.runs:
        return
    if entry.name in PARTS:
        yield f"a part of failover models up is called {entry.name}: give the model another name, and this as an alias"
    if entry.engine not in KNOWN_ENGINES and not all(entry.engine.partition(":")):
        near = is_meant(entry.engine, KNOWN_ENGINES)
        yield f"engine: {entry.engine} is none; allowed: {', '.join(KNOWN_ENGINES)}, or MODULE:FACTORY{near}"
    if (entry.engine == "command") != bool(entry.command):
        yield (
            "engine: command needs command: with the program and its arguments"
            if entry.engine == "command"
            else f"command: it has one, and its engine is {entry.engine}: say engine: command, or take command: out"
        )
    if entry.command and shutil.which(entry.command[0]) is None:
        yield f"command: {entry.command[0]} is no program that can be found"
    if entry.command and not any("{port}" in word for word in entry.command):
        yield "command: no word of it has {port}, so it can't be told where to listen"
    if entry.command and entry.arguments:
        yield "arguments: a command has its own behind its program, in command:"
    if entry.chat_template and "{" not in entry.chat_template:
        yield "chat_template: it is the template itself, not a file's name, and no { is in this one"
    if entry.engine == "vllm" and not entry.arguments:
        yield "arguments: the first is the model that vLLM is to serve; for another engine say engine: NAME"
    if any(word.partition("=")[0] == NAMED for word in entry.arguments):
        yield f"arguments: {NAMED} is the entry's name here; others are aliases"
    if entry.standby and entry.command:
        yield "standby: a command has no second engine"
    if entry.snapshot and not os.path.isdir(os.path.dirname(os.path.abspath(entry.snapshot))):
        yield f"snapshot: there is no directory {os.path.dirname(os.path.abspath(entry.snapshot))}"
    for other in (one for one in file.models.values() if one is not entry and one.runs):
        shares, snapshots = other.region == entry.region, (other.snapshot, entry.snapshot)
        if not shares and all(snapshots) and len({os.path.realpath(place) for place in snapshots}) == 1:
            yield f"snapshot: {other.name} has its own there; each model needs a directory for itself"
        if any(one.startswith(f"{of}.kv-") for one in (entry.name, entry.region) for of in (other.name, other.region)):
            yield f"GMS has the KV cache of {other.name} under such a name; give it another, and this as an alias"
        if shares and (differs := [what for what in _OF_WEIGHTS if getattr(other, what) != getattr(entry, what)]):
            yield f"weights: {other.name} has them, too, and they can't be the same with other {' and '.join(differs)}"
    if entry.kv_parked and entry.command:
        yield "kv_parked: a command has no KV cache that could be parked"
    try:
        size(entry.kv_parked or 0)
    except BadValue as error:
        yield f"kv_parked: {error}"
    if entry.weights and entry.command:
        yield "weights: a command has none that others could have"
    if file.devices:
        for device in (*entry.devices, *(entry.memory if isinstance(entry.memory, dict) else ())):
            if device not in file.devices:
                yield f"devices: {device} is none of this host's{is_meant(device, file.devices)}"
    yield from _never_fits(entry, file, totals)


def _never_fits(entry: Entry, file: ModelsFile, totals: Mapping[str, int]) -> Iterator[str]:
    try:
        needs = model_rules(entry, file.devices).bytes
    except BadValue as error:
        yield f"memory: {error}"
        return
    if any(0 < need < 1024 for need in needs.values()):
        yield f"memory: it is {min(filter(None, needs.values()))} bytes: give it a unit, such as 8GiB"
    for device, need in needs.items() if _is_known(entry) else ():
        most = totals.get(device, need) - size(file.keep_free)
        if device in totals and need > most:
            there = f"{in_words(need)} of {device}, which has {in_words(most)} for models"
            yield f"memory: it takes {there}: it can never be awake"


def _is_known(entry: Entry) -> bool:
    """What it takes. What only its name tells may be far off, and is no reason to refuse it."""
    return bool(entry.memory or by_files(entry))


def _pins(file: ModelsFile, totals: Mapping[str, int], asleep: Container[str]) -> Iterator[str]:
    """What stays asleep needs no room beside the others, though it is pinned: of many models that a controller has
    launched, few are awake.
    """
    pinned = [one for one in file.models.values() if one.pin and one.runs and _is_known(one) and one.name not in asleep]
    for device, total in totals.items():
        needs = {entry.name: model_rules(entry, file.devices).bytes.get(device, 0) for entry in pinned}
        if sum(needs.values()) > total - size(file.keep_free):
            said = ", ".join(f"{name} {in_words(need)}" for name, need in needs.items())
            yield f"pin: the pinned models don't fit together on {device}, which has {in_words(total)}: {said}"


# -- estimates -----------------------------------------------------------------------------------------------------


def estimated(entry: Entry) -> int:
    """What its weights take, in bytes, by their files, or by the model's name; 0: not known."""
    named = next((word for word in (*entry.arguments, *entry.command) if not word.startswith("-")), "")
    return by_files(entry) or by_name(named if entry.engine in ("vllm", "command") else "")


def by_files(entry: Entry) -> int:
    words = (*entry.arguments, *entry.command)
    if named := {Path(word) for word in words if word.endswith(".gguf") and os.path.isfile(word)}:
        others = (one.parent.glob(glob.escape(one.name).replace("-00001-of-", "-?????-of-")) for one in named)
        return round(sum(map(_file_size, named.union(*others))) * GGUF)
    for word in words:
        if os.path.isdir(word) and (weights := list(Path(word).glob("*.safetensors"))):
            return round(sum(map(_file_size, weights)) * SAFETENSORS)
    return 0


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a link that leads nowhere, say, where a download hasn't come to it
        return 0


def by_name(name: str) -> int:
    """`Qwen3-8B`, `mixtral-8x7b`, `Llama-3.1-70B-AWQ`, `model-q4_k_m.gguf`: billions of weights, and how many bits each
    has.
    """
    billions = re.search(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])", name)
    if billions is None:
        return 0
    bits = 16.0
    for pattern, those in ((r"(?i)awq|gptq|int4|[-_]q4|4bit|fp4", 4.5), (r"(?i)fp8|int8|[-_]q8|8bit", 8.5)):
        bits = those if re.search(pattern, name) else bits
    return round(int(billions[1] or 1) * float(billions[2]) * 1e9 * bits / 8 * SAFETENSORS)


# -- what has changed ----------------------------------------------------------------------------------------------


def changes(before: ModelsFile, after: ModelsFile) -> list[str]:
    """In sentences, for a person who has just changed the file."""
    found = [f"{name} is new" for name in after.models.keys() - before.models.keys()]
    found += [f"{name} was taken out" for name in before.models.keys() - after.models.keys()]
    for name in after.models.keys() & before.models.keys():
        fields = _differ(before.models[name], after.models[name])
        found += [f"{name}: {', '.join(fields)} changed"] if fields else []
    rest = [field for field in _differ(before, after) if field != "models"]
    found += [f"{field} changed" for field in rest]
    late = [
        field for field in rest if field in ("devices", "capacity", "keep_free", "host_memory", "listen", "metrics")
    ]
    found += [f"{', '.join(late)}: not before failover models up is started again"] if late else []
    return sorted(found)


def _differ(one: msgspec.Struct, other: msgspec.Struct) -> list[str]:
    return [field for field in one.__struct_fields__ if getattr(one, field) != getattr(other, field)]
