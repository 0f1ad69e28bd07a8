"""The reference engine's arguments: what stands behind `--` of engine-shim.

The program in front has settings of its own (`FAILOVER_...` in the environment); these have `REFERENCE_...`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from engine_shim.engine import Listen
from reference_engine.kv import block_bytes
from reference_engine.kv_prefix import blocks_for
from reference_engine.model import BadShape, Shape
from reference_engine.places import BLOCK
from sidecar.terminal.settings import BadValue, Parser, host_port, seconds, size_bytes

PRESETS = {
    "tiny": {"layers": 4, "width": 128, "heads": 4, "hidden": 384},
    "small": {"layers": 8, "width": 512, "heads": 8, "hidden": 1536},
    "medium": {"layers": 12, "width": 768, "heads": 12, "hidden": 2304},
    "large": {"layers": 16, "width": 1280, "heads": 20, "hidden": 3840},
}
"""4 MiB, 110 MiB, 370 MiB and 1.3 GiB of weights."""
KV_BYTES = 16 << 20
_KV_DEFAULT = "16MiB, or what one request of --max-model-len needs, if that is more"


@dataclass(frozen=True)
class Options:
    shape: Shape
    model: str
    devices: tuple[str, ...]
    kv_bytes: int
    max_batch: int
    tokens_per_s: float
    workers: int
    weights_timeout_s: float
    wake_timeout_s: float
    init_delay_s: float
    wake_delay_s: float
    standalone: bool
    listen: Listen

    @property
    def ranks(self) -> int:
        return self.workers + 1


def parser(environment: Mapping[str, str] | None = None) -> Parser:
    it = Parser(
        prog="python -m reference_engine",
        description=__doc__,
        environment=environment,
        epilog="presets: " + "; ".join(f"{name}: {_numbers(preset)}" for name, preset in PRESETS.items()),
    )

    def setting(flag: str, default: str | None, parse: Callable[[str], object], what: str, help: str) -> None:
        shown = _KV_DEFAULT if flag == "--kv-bytes" else None
        env = f"REFERENCE_{flag.lstrip('-').upper().replace('-', '_')}"
        it.setting(flag, default=default, parse=parse, env=env, metavar=what, help=help, shown_default=shown)

    setting("--model", "reference", str, "NAME", "the name it is served as")
    it.setting("--preset", default="tiny", env="REFERENCE_PRESET", choices=list(PRESETS), help="the model's size")
    for name in PRESETS["tiny"]:
        setting(f"--{name}", None, _count, "N", "instead of the preset's")
    setting("--seed", "0", _number, "N", "of the weights")
    setting("--max-model-len", "2048", _count, "N", "positions that prompt and answer have together")
    devices = "where weights and KV cache are; with several, processes take turns. None (''): its own memory"
    setting("--devices", "host:0", _devices, "host:NAME,...", devices)
    setting("--kv-bytes", None, size_bytes, "SIZE", "the KV cache of all processes together")
    setting("--max-batch", "16", _count, "N", "requests that are worked on at a time")
    setting("--tokens-per-s", "0", _rate, "R", "each request's pace; 0: as fast as it goes")
    setting("--workers", "0", _number, "N", "processes beside the main one, each with its share of the heads")
    setting("--weights-timeout-s", "3600", seconds, "S", "how long it waits for weights at its start")
    setting("--wake-timeout-s", "30", seconds, "S", "how long it waits for them when it wakes")
    setting("--init-delay-s", "0", _rate, "S", "so much longer its start takes, for rehearsals")
    setting("--wake-delay-s", "0", _rate, "S", "so much longer a wake takes, for rehearsals")
    it.switch("--standalone", env="REFERENCE_STANDALONE", help="alone: no lock, no GMS, its own memory")
    where = "where it serves when it stands alone"
    setting("--listen", "127.0.0.1:8000", _listen, "unix:PATH|HOST:PORT", where)
    return it


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Options:
    """Ends the program with a sentence if they are no good."""
    it = parser(environment)
    given = it.parse_args(list(arguments))
    numbers = {name: getattr(given, name) or PRESETS[given.preset][name] for name in PRESETS["tiny"]}
    try:
        shape = Shape(**numbers, max_len=given.max_model_len, seed=given.seed)
    except BadShape as error:
        it.error(str(error))
    block = block_bytes(shape, shape.heads)
    least = blocks_for(shape.max_len) * block
    kv_bytes = max(KV_BYTES, least) if given.kv_bytes is None else given.kv_bytes
    if kv_bytes < least:
        fits = kv_bytes // block * BLOCK
        it.error(
            f"--kv-bytes: one request of {shape.max_len} positions needs {least} bytes, and there are {kv_bytes}: "
            f"give --kv-bytes {-(-least // (1 << 20))}MiB" + (f", or --max-model-len {fits}" if fits else "")
        )
    if given.workers >= shape.heads:
        it.error(f"--workers: {given.workers + 1} processes can't share {shape.heads} heads")
    same = {each.name: getattr(given, each.name) for each in fields(Options) if each.name not in ("shape", "kv_bytes")}
    return Options(shape=shape, kv_bytes=kv_bytes, **same)


def _numbers(preset: Mapping[str, int]) -> str:
    return " ".join(f"{name} {number}" for name, number in preset.items())


def _number(text: str, least: int = 0) -> int:
    if not text.isdecimal() or not least <= int(text) < 1 << 31:
        raise BadValue(f"{text!r} is no number; allowed: {least} to {(1 << 31) - 1}")
    return int(text)


def _count(text: str) -> int:
    return _number(text, 1)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise BadValue(f"{text!r} is not allowed; 0 or more, such as 0.5")
    return value


def _devices(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    wrong = [name for name in names if not name.startswith("host:") or name == "host:"]
    if wrong:
        raise BadValue(
            f"{wrong[0]!r} is no device that numpy can compute on; allowed: host:NAME, or several with commas"
        )
    return names


def _listen(text: str) -> Listen:
    if text.startswith("unix:"):
        if text == "unix:":
            raise BadValue("unix: needs a path behind it")
        return Listen(path=text.removeprefix("unix:"))
    host, port = host_port(text)
    return Listen(host=host, port=port)
