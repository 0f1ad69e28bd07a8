"""The reference engine's arguments: what stands behind `--` of engine-shim.

The program in front has settings of its own (`FAILOVER_...` in the environment); these have `REFERENCE_...`.
"""

import math
from collections.abc import Mapping, Sequence
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
    it.setting("--model", default="reference", env="REFERENCE_MODEL", metavar="NAME", help="the name it is served as")
    it.setting("--preset", default="tiny", env="REFERENCE_PRESET", choices=list(PRESETS), help="the model's size")
    for name in ("layers", "width", "heads", "hidden"):
        it.setting(
            f"--{name}", parse=_count, env=f"REFERENCE_{name.upper()}", metavar="N", help="instead of the preset's"
        )
    it.setting("--seed", default="0", parse=_number, env="REFERENCE_SEED", metavar="N", help="of the weights")
    it.setting(
        "--max-model-len", default="2048", parse=_count, env="REFERENCE_MAX_MODEL_LEN", metavar="N",
        help="positions that prompt and answer have together",
    )  # fmt: skip
    it.setting(
        "--devices", default="host:0", parse=_devices, env="REFERENCE_DEVICES", metavar="host:NAME,...",
        help="where weights and KV cache are; with several, processes take turns. None (''): its own memory",
    )  # fmt: skip
    it.setting(
        "--kv-bytes", parse=size_bytes, env="REFERENCE_KV_BYTES", metavar="SIZE",
        shown_default="16MiB, or what one request of --max-model-len needs, if that is more",
        help="the KV cache of all processes together",
    )  # fmt: skip
    it.setting(
        "--max-batch", default="16", parse=_count, env="REFERENCE_MAX_BATCH", metavar="N",
        help="requests that are worked on at a time",
    )  # fmt: skip
    it.setting(
        "--tokens-per-s", default="0", parse=_rate, env="REFERENCE_TOKENS_PER_S", metavar="R",
        help="each request's pace; 0: as fast as it goes",
    )  # fmt: skip
    it.setting(
        "--workers", default="0", parse=_number, env="REFERENCE_WORKERS", metavar="N",
        help="processes beside the main one, each with its share of the heads",
    )  # fmt: skip
    it.setting(
        "--weights-timeout-s", default="3600", parse=seconds, env="REFERENCE_WEIGHTS_TIMEOUT_S", metavar="S",
        help="how long it waits for weights at its start",
    )  # fmt: skip
    it.setting(
        "--wake-timeout-s", default="30", parse=seconds, env="REFERENCE_WAKE_TIMEOUT_S", metavar="S",
        help="how long it waits for them when it wakes",
    )  # fmt: skip
    it.setting(
        "--init-delay-s", default="0", parse=_rate, env="REFERENCE_INIT_DELAY_S", metavar="S",
        help="so much longer its start takes, for rehearsals",
    )  # fmt: skip
    it.setting(
        "--wake-delay-s", default="0", parse=_rate, env="REFERENCE_WAKE_DELAY_S", metavar="S",
        help="so much longer a wake takes, for rehearsals",
    )  # fmt: skip
    it.switch("--standalone", env="REFERENCE_STANDALONE", help="alone: no lock, no GMS, its own memory")
    it.setting(
        "--listen", default="127.0.0.1:8000", parse=_listen, env="REFERENCE_LISTEN", metavar="unix:PATH|HOST:PORT",
        help="where it serves when it stands alone",
    )  # fmt: skip
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
