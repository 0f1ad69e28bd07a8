"""One way to declare a setting: its flag, then the environment, then a default, all of them shown by --help.

    parser = Parser(prog="lockserver", description="...")
    parser.setting("--window-s", default=10, parse=seconds, metavar="S", help="how long a holder may take to reconnect")

declares `--window-s`, `FAILOVER_WINDOW_S` and the default 10. A bad value is refused at start, in one line that says
where it came from and what is allowed, with exit code 64 (EX_USAGE): 1 and 2 mean other things to `lockctl`.

What this file may not do: know any program's settings. Each program declares its own in one place.
"""

import argparse
import contextlib
import difflib
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from sidecar.terminal.exit_codes import EX_USAGE
from sidecar.terminal.names import NAME, NAME_IN_WORDS, VERSION
from sidecar.terminal.names import BadValue as BadValue

ENVIRONMENT_PREFIX = "FAILOVER_"

RUN_DIR_WORDS = """\
--run-dir may stand before or after the command; the run directory also in FAILOVER_RUN_DIR. Its default is the same for
failover, lockctl and gmsctl: gpu-failover in $XDG_RUNTIME_DIR, else in /run/user/UID or for root in /run, else
/tmp/gpu-failover-UID.
"""
"""What `default_run_dir` does, for their --help."""
EXIT_CODES = """\
exit codes of all commands (each has more: COMMAND --help):
  2    no server, or it doesn't answer
  64   wrong usage
  74   what it prints can't be written
  75   the server has no room now: ask again later
  76   the server speaks other versions of the protocol
  77   the server refuses this user
  130  interrupted
  141  its output is no longer read
"""
"""For the --help of a command that speaks to a server."""

_MOST_SECONDS = 1e6
"""Eleven days. The kernel's waits end after twice that, and a message of GMS holds no more."""
_MOST_BYTES = 10**6 << 40
"""A number in a message may be four times as large."""
_SIZES: dict[str, int] = {"": 1, "B": 1} | {
    prefix + suffix: int(base**power)
    for base, suffix in ((1024, "iB"), (1000, "B"))
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
}


def seconds(text: str) -> float:
    """A time: "10", "0.5"; more than 0, and no longer than the kernel waits."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _MOST_SECONDS:
        raise BadValue(f"{text!r} is no time in seconds; allowed: a number above 0 such as 10 or 0.5")
    return value


def size_bytes(text: str) -> int:
    """An amount of memory: "4GiB", "512MiB", "1000"."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    unit = _SIZES.get(match[2]) if match else None
    if match is None or unit is None or int(match[1]) * unit > _MOST_BYTES:
        meant = re.fullmatch(r"(\d+)\s*([kmgt])(?:i?b?)", text.strip(), re.ASCII | re.IGNORECASE)
        hint = f" (is {meant[1]}{meant[2].upper()}iB meant?)" if meant is not None else ""
        allowed = "bytes, or a whole number with KiB, MiB, GiB or TiB such as 4GiB, at most a million TiB"
        raise BadValue(f"{text!r} is no size{hint}; allowed: {allowed}")
    return int(match[1]) * unit


def count(text: str) -> int:
    """1, 2, 3 ..."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadValue(f"{text!r} is no count; allowed: 1, 2, 3 ...")
    return int(text)


def host_port(text: str) -> tuple[str, int]:
    """Where to listen: "127.0.0.1:9100", "[::1]:9100", ":9100" (every address of this machine)."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
        raise BadValue(f"{text!r} is no address; allowed: HOST:PORT such as 127.0.0.1:9100 or [::1]:9100")
    return host, int(port)


def url(text: str) -> str:
    """A server's: "http://10.0.0.1:8080". Empty: none."""
    try:
        at = urlsplit(text)
        understood = at.scheme in ("http", "https") and at.hostname and at.port != 0
    except ValueError:
        understood = False
    if text and not understood:
        raise BadValue(f"{text!r} is no URL; allowed: http://HOST:PORT or https://HOST:PORT")
    return text.rstrip("/")


def seconds_or_zero(text: str) -> float:
    """A time that may be none at all: "0", "0.5"."""
    return 0.0 if text.strip() in ("0", "0.0") else seconds(text)


def name(text: str) -> str:
    """What an engine may be called: exactly what the wire takes."""
    if not re.fullmatch(NAME, text):
        raise BadValue(f"{text!r} is no name; allowed: {NAME_IN_WORDS}")
    return text


def directory(text: str) -> Path:
    """A directory, as an absolute path: what it means must not depend on where a process is later. It needn't be there
    yet.
    """
    if not text:
        raise BadValue("it is empty; allowed: a directory such as /run/failover")
    try:
        found = Path(os.path.abspath(text))
    except FileNotFoundError:
        raise BadValue(f"{text!r} is in the working directory, which was removed; allowed: an absolute path") from None
    try:
        str(found).encode()
    except UnicodeEncodeError:  # engines' addresses are in it, and are text to every peer
        raise BadValue(f"{str(found)!r} isn't text in UTF-8; allowed: a directory such as /run/failover") from None
    mode = 0
    with contextlib.suppress(OSError, ValueError):  # whatever else is wrong with it is said where it is used
        mode = os.stat(found).st_mode
    if stat.S_ISSOCK(mode):
        raise BadValue(f"{text!r} is a socket: give its directory")
    return found


def default_run_dir() -> Path:
    """Not in /tmp where there is another place: a cleaner of /tmp takes files from a pair that runs."""
    uid = os.getuid()
    for place in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}", "/run" if uid == 0 else None):
        if place and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return Path(place) / "gpu-failover"
    return Path(f"/tmp/gpu-failover-{uid}")


def mode(text: str) -> int:
    """Permissions of a file: "600", "0660"."""
    try:
        value = int(text, 8)
    except ValueError:
        value = -1
    if not 0 <= value <= 0o777:
        raise BadValue(f"{text!r} is no mode; allowed: octal digits such as 600 or 660")
    return value


def uids(text: str) -> frozenset[int]:
    """Users by number: "1000,1001"."""
    try:
        return frozenset(int(uid) for uid in text.split(",") if uid)
    except ValueError:
        raise BadValue(f"{text!r} is no list of users; allowed: numbers such as 1000,1001") from None


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose settings can come from the environment. Sub-commands are Parsers too."""

    def __init__(self, *args: Any, environment: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)  # an abbreviation stops working when a second flag begins like it
        super().__init__(*args, **kwargs)
        self._is_program = " " not in self.prog.removeprefix("python -m ")
        if self._is_program:  # a sub-command has its program's
            self.add_argument("--version", action="version", version=f"{self.prog} {VERSION} (gpu-failover)")
        self._environment = os.environ if environment is None else environment
        self._given: list[str] = []

    def setting(
        self,
        flag: str,
        *,
        help: str,
        default: object = None,
        parse: Callable[[str], object] = str,
        env: str | None = None,
        metavar: str | None = None,
        choices: Sequence[str] | None = None,
        required: bool = False,
        shown_default: str | None = None,
    ) -> None:
        """One setting with one value. A default that is a text is parsed like any other."""
        variable, given = self._variable(flag, env)
        shown = shown_default if shown_default is not None else default
        self.add_argument(
            flag,
            type=_Parse(variable, _one_of(choices) if choices else parse),
            default=default if given is None else _FromEnvironment(given),
            required=required and given is None,
            metavar=metavar or ("|".join(choices) if choices else None),
            help=_described(help, variable, None if shown in (None, "") or required else str(shown)),
        )

    def switch(self, flag: str, *, help: str, env: str | None = None) -> None:
        """A setting that is off unless it is turned on, by its flag or by 1, true or yes in the environment."""
        variable, given = self._variable(flag, env)
        self.add_argument(
            flag,
            action=_Switch,
            type=_Parse(variable, _truth),
            default=False if given is None else _FromEnvironment(given),
            help=_described(help, variable, None),
        )

    def run_dir(self, help: str) -> None:
        """Where a pair is, for people's commands: one default for all. A program declares it, and each of its commands
        again, so that it may stand before the command or behind it.
        """
        self.setting("--run-dir", parse=directory, default=default_run_dir(), metavar="DIR", help=help)
        if not self._is_program:
            self._actions[-1].default = argparse.SUPPRESS  # where it isn't given here, the program's stands

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What isn't known is the sub-command's to say, which knows what could be meant."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            getattr(options, "parser", self).error(f"unrecognized arguments: {' '.join(unknown)}")
        return options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keeps what was given: where a required flag is mistyped, argparse names that flag and not the word."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._given, namespace)

    def error(self, message: str) -> NoReturn:
        """One line that says what is wrong and what may be meant, one that says where help is."""
        print(f"{self.prog}: {message}{self._meant(message)}\nsee: {self.prog} --help", file=sys.stderr)
        raise SystemExit(EX_USAGE)

    def _meant(self, message: str) -> str:
        """The flag or command that a mistyped one in this message comes near; empty where none does."""
        found = re.search(r"(?:unrecognized arguments|known here): ([^;]*)|invalid choice: '(.*?)'", message)
        known = [*self._option_string_actions, *(str(word) for each in self._actions for word in each.choices or ())]
        words = (found[1] or found[2]).split() if found is not None else []
        if " required" in message:
            words = [word for word in takewhile("--".__ne__, self._given) if word.startswith("--")]
        for word in words:
            if word.partition("=")[0] in known:
                if " required" in message:
                    continue
                return f"; {word} stands behind the command"
            bare = {each.lstrip("-"): each for each in known}
            for near in difflib.get_close_matches(word.partition("=")[0].lstrip("-"), bare, 1):
                return f"; did you mean {bare[near]}?"
        return ""

    def _variable(self, flag: str, env: str | None) -> tuple[str, str | None]:
        variable = env or ENVIRONMENT_PREFIX + flag.lstrip("-").replace("-", "_").upper()
        return variable, self._environment.get(variable) or None  # set and empty is as good as not set


class _FromEnvironment(str):
    """A default from the environment: argparse parses it like a flag's value, and only if no flag was given."""


class _Parse:
    """Gives argparse our message instead of its own, and names the variable when the value came from there."""

    def __init__(self, variable: str, parse: Callable[[str], object]) -> None:
        self._variable = variable
        self._parse = parse

    def __call__(self, text: str) -> object:
        try:
            return self._parse(str(text))
        except ValueError as error:
            said = str(error) if isinstance(error, BadValue) else f"{str(text)!r} is not allowed ({error})"
            where = f"from the environment ({self._variable}): " if isinstance(text, _FromEnvironment) else ""
            raise argparse.ArgumentTypeError(where + said) from error


class _Switch(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, option: object = None) -> None:
        setattr(namespace, self.dest, True)


def valued(parse: Callable[[str], object]) -> Callable[[str], object]:
    """For flags that are declared with argparse itself: gives it the sentence of a bad value instead of its own."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except BadValue as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _truth(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise BadValue(f"{text!r} is neither yes nor no; allowed: 1, true, yes, 0, false, no")
    return known[text.lower()]


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise BadValue(f"{text!r} is unknown; allowed: {', '.join(choices)}")
        return text

    return parse


def _described(help: str, variable: str, default: str | None) -> str:
    text = f"{help} [{variable}]" if default is None else f"{help} [{variable}, default {default}]"
    return text.replace("%", "%%")
