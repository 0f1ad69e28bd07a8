"""Our own programs, read from a manifest with their own parsers: what a container's command means, or why it is wrong.

What this file may not do: judge. That is `own_rules.py`.
"""

import contextlib
import importlib
import io
import os
import re
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

from engine_shim.cli import part_environment

from .pods import Container

MODULES = {
    "lockserver": "lockserver.__main__",
    "gms": "gms.__main__",
    "engine-shim": "engine_shim.__main__",
    "gateway": "gateway.__main__",
    "failover": "engine_shim.cli.failover",
}
ENGINES = ("engine-shim",)
SERVERS = ("lockserver", "gms", "gateway")
PAIR = "failover"
"""All of it in one container: `failover up`."""
PARTS = {
    part_environment.LOCK: "lockserver",
    part_environment.GMS: "gms",
    part_environment.DOOR: "gateway",
    part_environment.ENGINES: "engine-shim",
}
TOOLS = {"lockctl": "lockserver.cli.lockctl", "gmsctl": "gms.cli.gmsctl"}
# Variables of ours that no parser declares.
OTHER_VARIABLES = {"FAILOVER_VLLM_DEVICES", "FAILOVER_VLLM_RESERVE", "FAILOVER_HOST_DEVICES", "FAILOVER_RUN_DIR"}


@dataclass(frozen=True, eq=False)
class Program:
    """One of ours in a container."""

    name: str
    container: Container
    options: Any
    """As its parser gives them; empty when it has none, or when they are wrong."""
    wrong: str = ""

    def option(self, name: str) -> Any:
        return getattr(self.options, name, None)

    @property
    def run_dir(self) -> PurePosixPath | None:
        given = self.option("run_dir") or self.container.environment.get("FAILOVER_RUN_DIR")
        return PurePosixPath(str(given)) if given else None

    @property
    def arguments(self) -> list[str]:
        """The engine's own: what stands behind --."""
        return list(self.option("arguments") or ())


def program(container: Container) -> Program | None:
    """What runs in it, if it is ours. An engine whose command is the image's own is known by its variables."""
    words = [_expanded(word, container.environment) for word in container.words] if container.node["command"] else []
    name = PurePosixPath(words[0]).name if words else ""
    if re.fullmatch(r"python[0-9.]*", name) and words[1:2] == ["-m"]:
        words = words[2:]
        name = {module.removesuffix(".__main__"): name for name, module in MODULES.items()}.get("".join(words[:1]), "")
    if name not in MODULES:
        if not words and {"ENGINE_ID", "ENGINE_ROLE"} & set(container.environment):
            environment = container.environment
            given = {"engine_id": environment.get("ENGINE_ID"), "role": environment.get("ENGINE_ROLE")}
            return Program("engine-shim", container, SimpleNamespace(**given))
        return None
    options, wrong = _parsed(name, tuple(words[1:]), tuple(sorted(container.environment.items())))
    return Program(name, container, options, wrong)


@lru_cache(maxsize=256)
def _parsed(name: str, words: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    said = io.StringIO()
    with _environment(dict(environment)), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        parser = _parser(name)
        if parser is None:
            return SimpleNamespace(), ""
        try:
            if name in (*ENGINES, PAIR):
                return importlib.import_module("engine_shim.cli.command_settings").parsed(parser, words), ""
            return parser.parse_args(words), ""
        except SystemExit:
            first = said.getvalue().strip().splitlines()
            return SimpleNamespace(), first[0] if first else f"{name} ends with it at once"


def _parser(name: str) -> ArgumentParser | None:
    try:
        found: ArgumentParser = importlib.import_module(MODULES[name]).parser()
    except ImportError:
        return None
    return found


@cache
def variables(pair: bool = False) -> frozenset[str]:
    """Every variable that one of our programs reads; beside `failover up` also those that are for one part alone."""
    found = set(OTHER_VARIABLES)
    for name in MODULES:
        found |= _read_by(name)
    for part, name in PARTS.items() if pair else ():
        prefix = part_environment.PREFIX
        found |= {each.replace(prefix, f"{prefix}{part}_") for each in _read_by(name) if each.startswith(prefix)}
    return frozenset(found)


@cache
def _read_by(name: str) -> frozenset[str]:
    with _environment({}):
        parser = _parser(name)
    said = " ".join(parser.format_help().split()) if parser is not None else ""
    return frozenset(re.findall(r"\[([A-Z][A-Z0-9_]+)[,\]]", said))


def reference_options(arguments: list[str]) -> tuple[Any, str]:
    """The reference engine's settings, or what it says to its arguments. Neither where it isn't installed."""
    said = io.StringIO()
    try:
        options = importlib.import_module("reference_engine.options")
    except ImportError:
        return None, ""
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            return options.parse(arguments, {}), ""
        except SystemExit:
            lines = said.getvalue().strip().splitlines()
            return None, lines[0] if lines else "the reference engine ends with them at once"


@lru_cache(maxsize=64)
def tool_problem(name: str, words: tuple[str, ...]) -> str:
    """What lockctl or gmsctl says to its arguments: a sentence, or "" when it takes them. Where it looks is known."""
    said = io.StringIO()
    with _environment({"FAILOVER_RUN_DIR": "/run"}), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            importlib.import_module(TOOLS[name]).parser().parse_args(list(words))
        except SystemExit as error:
            return (said.getvalue().strip().splitlines() or [f"{name} ends with it"])[0] if error.code else ""
    return ""


def value_of(arguments: list[str], *flags: str) -> str | None:
    """The value of a flag in the arguments of a program that isn't ours."""
    for index, word in enumerate(arguments):
        for flag in flags:
            if word == flag and index + 1 < len(arguments):
                return arguments[index + 1]
            if word.startswith(flag + "="):
                return word[len(flag) + 1 :]
    return None


def _expanded(word: str, environment: dict[str, str]) -> str:
    """As kubelet does: $(NAME) is a variable's value, $$ a dollar, and what isn't set stays."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", one, word)


@contextlib.contextmanager
def _environment(environment: dict[str, str]) -> Iterator[None]:
    """The parsers read os.environ; for a moment it is the container's."""
    kept = dict(os.environ)
    os.environ.clear()
    os.environ.update({key: value for key, value in environment.items() if _can_be_set(key, value)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _can_be_set(key: str, value: str) -> bool:
    return bool(key) and "=" not in key and "\0" not in key + value
