"""What there is to say about models, in the words of all that say it: models.yaml, the door, the pool, people. Pure.

`Entry` and the structs below it are what models.yaml says (`models_file.py` reads it and makes its JSON schema of
them); the descriptions are what an editor shows. `ModelDemand` is what a door says of a model, `ModelOutlook` what the
pool answers, and `ModelShown` what people see. What this file may not do: decide anything.
"""

import enum
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from sidecar.terminal.names import NAME

MOST_MODELS: Final = 256
MOST_ENTRY_BYTES: Final = 900_000
"""The launcher is told an entry in one frame."""
FOLLOWS_NONE: Final = "nothing of it is followed"
"""An alarm's words of a models.yaml that is wrong."""
Name = Annotated[str, Meta(pattern=rf"^{NAME}\Z", description="1 to 64 letters, digits, dots, dashes, underscores")]
"""A model's: it is a directory's name, too."""
Called = Annotated[str, Meta(min_length=1, max_length=200)]
"""What a client may call a model: `org/model:tag`, say."""
Device = Annotated[str, Meta(min_length=1, max_length=128)]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]
Milliseconds = Annotated[int, Meta(ge=0, lt=1 << 53)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
DrainSeconds = Annotated[float, Meta(ge=0, le=86400)]
"""What a lock takes."""
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Priority = Annotated[int, Meta(ge=-1000, le=1000, description="the lowest number is the most urgent")]
Size = Annotated[str, Meta(max_length=40)] | Bytes
"""`12GiB`, or bytes."""
Sentence = Annotated[str, Meta(max_length=2000)]


class State(enum.Enum):
    """Where a model is."""

    OFF = "off"
    """No process of it runs."""
    LOADING = "loading"
    """Its engine starts; it has never slept yet."""
    ASLEEP = "asleep"
    """Its engine could wake, and waits for its turn."""
    WAKING = "waking"
    """It is to be awake, and doesn't serve yet: its memory is awaited, or its engine wakes."""
    AWAKE = "awake"
    DRAINING = "draining"
    """It is to sleep: answers end or are paused, and its engine gives its memory back."""
    STOPPING = "stopping"
    """It is to be OFF, and its processes end."""
    FAILED = "failed"
    """It couldn't be started or waked; it is tried again after a pause."""


# -- what models.yaml says -----------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many requests may wait. One more is answered with 429 and Retry-After."""

    waiting: Annotated[int, Meta(ge=1, description="requests that may wait for this model")] = 1000
    per_client: Annotated[int, Meta(ge=1, description="requests of one client, waiting or served")] = 100


class Remote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An OpenAI-compatible endpoint elsewhere: no engine of this host, and no memory."""

    url: Annotated[str, Meta(pattern=r"^https?://", max_length=500, description="its base, such as https://host/v1")]
    model: Annotated[str, Meta(max_length=200, description="what the model is called there; empty: as here")] = ""
    key_env: Annotated[
        str, Meta(max_length=200, description="the environment variable of the door that has its key")
    ] = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model: what it is called, what runs it, and how it is to be treated."""

    name: Annotated[str, Meta(description="in models.yaml: the key of the entry")] = ""
    aliases: Annotated[list[Called], Meta(max_length=100, description="other names that clients may ask for")] = []
    engine: Annotated[
        str, Meta(description="vllm, reference, command (any program, see `command`), or MODULE:FACTORY")
    ] = "vllm"
    arguments: Annotated[
        list[str], Meta(max_length=1000, description="the engine's own, as behind -- of failover up")
    ] = []
    command: Annotated[
        list[str],
        Meta(max_length=1000, description="a program with an OpenAI endpoint, which is started and stopped instead of "
             "waked and put to sleep; {port} becomes the port where it is to listen"),
    ] = []  # fmt: skip
    health: Annotated[str, Meta(pattern="^/", description="the path of `command` that answers 200 once it serves")] = (
        "/health"
    )
    environment: Annotated[dict[str, str], Meta(description="variables of its engine's processes")] = {}
    devices: Annotated[list[Device], Meta(max_length=64, description="where it runs; empty: on all of the host")] = []
    memory: Annotated[
        Size | dict[Device, Size],
        Meta(description="what it takes on each device while it is awake, such as 12GiB; empty: estimated from its "
             "weights, then as measured"),
    ] = ""  # fmt: skip
    priority: Priority = 0
    pin: Annotated[bool, Meta(description="it is kept awake, and put to sleep by a person only")] = False
    keep_alive_s: Annotated[
        Seconds | None,
        Meta(description="asleep after so long without a request; empty: awake until another needs the memory"),
    ] = None
    stop_after_s: Annotated[Seconds | None, Meta(description="ended after being asleep for so long")] = None
    loaded_at_least_s: Annotated[Seconds, Meta(description="once awake, not put to sleep for another before that")] = (
        0.0
    )
    standby: Annotated[bool, Meta(description="it has two engines, and the second takes over when one dies")] = False
    preload: Annotated[
        bool, Meta(description="its engine is started with the pool, and not with the first request")
    ] = False
    weights: Annotated[
        str,
        Meta(pattern=rf"^({NAME})?\Z", description="a name for its weights: models with the same share one copy, so "
             "these have to be the same weights, on the same devices; empty: the model's own"),
    ] = ""  # fmt: skip
    snapshot: Annotated[
        str,
        Meta(description="a directory for its weights: they are read from there, and saved there where there are none"),
    ] = ""
    kv_parked: Annotated[
        Size,
        Meta(description="how much host memory its KV cache may take while it sleeps, such as 1GiB, so that an answer "
             "goes on without reading its context again; empty: none, it is dropped"),
    ] = ""  # fmt: skip
    drain_s: Annotated[
        DrainSeconds | None,
        Meta(description="how long answers may go on before a swap pauses them; empty: as of the file"),
    ] = None
    ladder: Annotated[
        list[Called],
        Meta(max_length=16, description="an entry without an engine: a name for the first of these that can answer"),
    ] = []
    in_order: Annotated[
        bool, Meta(description="a ladder's: its first model is waited for, whichever behind it is awake")
    ] = False
    remote: Remote | None = None
    own_port: Annotated[
        bool, Meta(description="the door opens a port for it alone: what comes there is for it, whatever it calls it")
    ] = False
    limits: Limits = Limits()
    chat_template: Annotated[str, Meta(max_length=100_000, description="for requests that bring none")] = ""
    defaults: Annotated[
        dict[str, Any],
        Meta(description="fields for requests that don't say them, such as chat_template_kwargs or temperature"),
    ] = {}

    @property
    def runs(self) -> bool:
        """An engine of this host runs it; else it is a ladder, or elsewhere."""
        return not self.ladder and self.remote is None

    @property
    def region(self) -> str:
        """What its weights are called in GMS."""
        return self.weights or self.name


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How requests of certain clients (`x_client_id`) are treated."""

    clients: Annotated[list[Called], Meta(min_length=1, max_length=1000)]
    models: Annotated[
        dict[Called, Called], Meta(description="what they ask for -> what is meant, a ladder a|b too")
    ] = {}
    priority: Priority | None = None
    keep_alive_s: Seconds | None = None
    defaults: Annotated[dict[str, Any], Meta(description="fields for requests that don't say them")] = {}


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What a person may change while it runs; what was changed outlives a restart."""

    allow_cloud_fallback: Annotated[
        bool, Meta(description="false: a ladder's remote entries from the second position on are passed over")
    ] = True


OF_SERVING: Final = {
    "vllm": ("--max-num-seqs", "--gpu-memory-utilization", "--served-model-name", "--api-key"),
    "reference": ("--max-batch", "--kv-bytes", "--max-model-len", "--tokens-per-s", "--wake-delay-s"),
}
"""Arguments that change nothing of an engine's weights. Of others that isn't known."""


def of_weights(engine: str, arguments: Iterable[str]) -> list[str]:
    """The arguments that its weights may follow from."""
    return parted(arguments, OF_SERVING.get(engine, ()))[0]


def parted(words: Iterable[str], flags: tuple[str, ...], instead: str = "") -> tuple[list[str], list[str]]:
    """The words without these flags, or with `instead` as their values, and what the values are."""
    found, values, rest = list[str](), list[str](), list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in flags:
            values.append(value if equals or not rest else rest.pop(0))
            found += [flag, instead] if instead else []
        else:
            found.append(word)
    return found, values


# -- between a door and the pool -----------------------------------------------------------------------------------


class ModelDemand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a door has for one model at the moment. A model that isn't named has nothing."""

    waiting: Count = 0
    """Requests that no engine has yet."""
    oldest_wait_ms: Milliseconds = 0
    """How long the first of those that wait, or are paused, has waited."""
    deadline_in_ms: int | None = None
    """The nearest deadline of those that wait or are paused; negative when it is over."""
    priority: Priority = 0
    """The most urgent one's."""
    streaming: Count = 0
    """Requests that an engine works on."""
    paused: Count = 0
    """Answers that a swap has interrupted, and that go on with the next grant."""
    keep_alive_s: Seconds | None = None
    """The longest that a request has asked for."""
    served: Count = 0
    """How many requests have ended since the door began: a change is a use, however short it was."""
    turn_ms: Milliseconds = 0
    """So long a turn has to be for requests that can't go on where they were, and begin anew, to come further than in
    their last one."""


class ModelOutlook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the pool says of one model."""

    state: State = State.OFF
    why: Sentence = ""
    """What it waits for, or why it failed; for clients' comments."""
    turn: Count = 0
    """0: it is served or waked now. n: n-th in the queue; with a demand only."""
    estimate_ms: Milliseconds | None = None
    """Until a request that comes now could be answered: 0 while it is awake. None: not known. Of one that has failed:
    until it may be asked again.
    """
    soonest_ms: Milliseconds | None = None
    """The same for one that would be too late otherwise: others' turns are shortened for it. None: as long."""
    run_dir: str = ""
    """Where its lock is; empty for one that has none: a ladder, or one that is elsewhere."""
    token: Count = 0
    """Its newest grant's, as far as the pool has seen."""
    leaving: bool = False
    """It was taken out of models.yaml: what is there is finished, and no new request is taken."""
    loaded: str = ""
    """By what the weights of its engines, or of its last ones, are told from others'; empty: not known."""


# -- for people ----------------------------------------------------------------------------------------------------


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: State
    why: str
    devices: list[str]
    bytes: dict[str, int]
    """Device -> what it has, or takes while it is awake."""
    asleep_bytes: dict[str, int]
    """What it keeps while it is asleep, by device, and `host`."""
    last_used: str | None
    """RFC 3339."""
    port: int | None
    """Where `command` listens."""
    pinned: bool
    turn: int
    estimate_ms: int | None
    weights: dict[str, int] = {}
    """Device -> what its weights take there, as GMS says, beside `bytes`."""
    weights_name: str = ""
    """Models that show the same have one copy of them."""
    parked: dict[str, int] = {}
    """Device -> how many bytes of its weights are parked in host memory."""
    waiting: int = 0
    streaming: int = 0
    paused: int = 0
    aliases: list[str] = []
    priority: int = 0
    swaps: int = 0
    """How often it was waked."""
    awake_s: float = 0.0
    failures: int = 0
    pauses: int = 0
    """Answers that a swap has paused."""
    waited_s: float = 0.0
    """How long the first of its requests that wait, or are paused, has."""
    token: int = 0
    runs: bool = False
    """Its processes do."""
    wanted: bool = False
    """It is to be awake, and will be once it can: for requests, as it is pinned, or as a person has said."""


class DeviceShown(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    total: int | None
    """None where no reader can tell, as for `free`."""
    free: int | None
    leased: int
