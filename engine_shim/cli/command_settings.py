"""The settings that `engine-shim`, the engine's main process and `failover` have in common."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_shim.engine import Listen
from sidecar.terminal.settings import BadValue, Parser, host_port, seconds


def directory(text: str) -> Path:
    """Parses the value of --run-dir."""
    if not text:
        raise BadValue("it is empty; allowed: a directory such as /run/failover")
    return Path(text)


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


def kv(parser: Parser) -> None:
    """Declares whether the KV cache outlives its engine."""
    parser.setting(
        "--kv",
        choices=["keep", "drop"],
        shown_default="keep in host memory, drop on a GPU",
        help="keep: the engine that takes over goes on with its predecessor's KV cache; drop: it begins with an empty "
        "one",
    )


def times(parser: Parser) -> None:
    """Declares the bounds of an engine's life. `engine-shim` has them, and `failover up` for both of its engines."""
    for flag, default, what in (
        ("--waking-timeout-s", 60, "how long a wake may take"),
        ("--init-timeout-s", 7200, "how long Init may take"),
        ("--stall-s", 60, "how long an engine may be silent, or have work queued, finish no step and use no processor"),
        ("--busy-stall-s", 300, "how long it may have work queued and finish no step though it uses processors"),
        ("--drain-s", 20, "how long an engine that is told to end may finish what it has"),
    ):
        parser.setting(flag, default=default, parse=seconds, metavar="S", help=what)


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
