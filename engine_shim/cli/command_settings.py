"""The settings that `engine-shim`, the engine's main process and `failover` have in common."""

import sys
from collections.abc import Sequence
from typing import Any

from engine_shim.engine import Listen
from engine_shim.rules.events import Config
from engine_shim.shell import known_engines
from sidecar.terminal.settings import BadValue, Parser, directory, host_port, name, seconds, size_bytes


def listen(text: str) -> Listen:
    """Parses the value of --listen."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise BadValue(
                f"{text!r} is no address; a Unix socket needs an absolute path such as unix:/run/engine.sock"
            )
        return Listen(path=path)
    try:
        host, port = host_port(text)
    except BadValue:
        raise BadValue(f"{text!r} is no address; allowed: unix:PATH, or HOST:PORT such as 127.0.0.1:8000") from None
    return Listen(host=host, port=port)


def needs(text: str) -> dict[str, int]:
    """Parses the value of --needs."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        device, equals, bytes = part.rpartition("=")
        if not equals or not device:
            raise BadValue(f"{part!r} is no amount of memory; allowed: DEVICE=BYTES such as host:0=4GiB")
        found[device] = size_bytes(bytes)
    return found


def engine(parser: Parser, **more: Any) -> None:
    parser.setting(
        "--engine",
        parse=known_engines.kind,
        metavar="ENGINE",
        help="vllm, reference (a small model whose text means nothing), command (any program with an OpenAI endpoint), "
        "or MODULE:FACTORY for one of your own",
        **more,
    )


def one_engine(parser: Parser) -> None:
    """Declares what an engine is told: its shim has these settings, and gives them to its main process."""
    engine(parser, required=True)
    parser.setting(
        "--engine-id", required=True, parse=name, env="ENGINE_ID", metavar="ID", help="the name of this engine"
    )
    parser.setting(
        "--role",
        default="primary",
        choices=known_engines.ROLES,
        env="ENGINE_ROLE",
        help="primary: loads the weights if no engine has; shadow: only ever reads them",
    )
    parser.setting(
        "--run-dir",
        required=True,
        parse=directory,
        metavar="DIR",
        help="the lock server's and GMS's directory; the engine serves in DIR/engine unless --listen says otherwise",
    )
    parser.setting(
        "--listen",
        parse=listen,
        metavar="unix:PATH|HOST:PORT",
        shown_default="unix:DIR/engine/ID.TOKEN.sock",
        help="where the engine serves once it is awake",
    )
    parser.setting(
        "--host-dir",
        parse=directory,
        metavar="DIR",
        shown_default="the run directory",
        help="one of many models: where GMS is, of which the host has one",
    )
    parser.setting(
        "--weights",
        parse=name,
        metavar="NAME",
        shown_default="the model's name",
        help="one of many models: what its weights are called in GMS, where other models have them, too",
    )
    parser.setting(
        "--health",
        default="/health",
        metavar="PATH",
        help="of a command: the path that answers with 200 once it serves",
    )
    parser.setting(
        "--needs",
        default="",
        parse=needs,
        metavar="DEVICE=BYTES,...",
        help="of a command: the device memory that it takes, which is leased before it starts",
    )
    kv(parser)
    parser.setting(
        "--kv-parked",
        default="1GiB",
        parse=size_bytes,
        metavar="SIZE",
        help="one of many models, with --kv keep: the most host memory for what its KV cache holds while it sleeps",
    )
    snapshot(parser)


def snapshot(parser: Parser) -> None:
    parser.setting(
        "--snapshot",
        parse=directory,
        metavar="DIR",
        help="the weights on disk: they are read from there, which is quicker than loading them; where there are none "
        "yet, they are saved once they are loaded",
    )


def kv(parser: Parser) -> None:
    """Declares whether the KV cache outlives its engine."""
    parser.setting(
        "--kv",
        choices=["keep", "drop"],
        shown_default="keep in host memory, drop on a GPU",
        help="keep: the engine that takes over goes on with its predecessor's KV cache, and after a sleep one of many "
        "models with its own; drop: it begins with an empty one",
    )


_TIMES = {
    "waking_timeout_s": "how long a wake may take, or a sleep in place",
    "init_timeout_s": "how long Init may take",
    "stall_s": "how long an engine may be silent, or have work queued, finish no step and use no processor",
    "busy_stall_s": "how long it may have work queued and finish no step though it uses processors",
    "drain_s": "how long an engine that is told to end may finish what it has",
    "room_timeout_s": "how long a wake may wait for device memory that other models have",
}
"""Fields of `Config`, which has the defaults."""


def flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def times(parser: Parser, *names: str) -> None:
    """Declares the bounds of an engine's life. `engine-shim` has them, and `failover up` for both of its engines."""
    for field in names or _TIMES:
        default = f"{getattr(Config(''), field):g}"
        parser.setting(flag(field), default=default, parse=seconds, metavar="S", help=_TIMES[field])


def times_of(options: Any) -> dict[str, float]:
    return {field: getattr(options, field) for field in _TIMES}


def parsed(parser: Parser, argv: Sequence[str] | None) -> Any:
    """The command's settings. A flag that it doesn't know is usually the engine's, in the wrong place."""
    words = sys.argv[1:] if argv is None else argv
    options, unknown = parser.parse_known_args(words)
    takes_arguments = hasattr(options, "arguments")
    parser = getattr(options, "parser", parser)  # a sub-command's own
    if unknown:
        hint = "" if "--" in unknown or not takes_arguments else "; the engine's own go behind --"
        parser.error(f"unknown here: {' '.join(unknown)}{hint}")
    if takes_arguments and options.arguments and "--" not in words:
        parser.error(f"unknown here: {' '.join(options.arguments)}; the engine's own go behind --")
    return options
