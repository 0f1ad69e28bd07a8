"""A process joins its tree: once for each server, tree and process, however often it asks."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evidence.rules.standing import Me
from evidence.shell.session import ProcessSession
from sidecar.terminal.names import NAME

Make = Callable[[Path, Me, Callable[[str], object]], ProcessSession]


class Memberships:
    """One kind of server's. `where`, `tree`: the variables in which both names come, as a rule."""

    def __init__(self, make: Make, where: str, tree: str, absolute: Callable[[Path | str], Path]) -> None:
        self._make = make
        self._where = where
        self._tree = tree
        self._absolute = absolute
        self._joined: dict[tuple[int, Path, str], ProcessSession] = {}

    def join(
        self,
        error: type[Exception],
        where: Path | str | None,
        tree: str | None,
        on_lost: Callable[[str], object],
        timeout_s: float | None,
    ) -> Any:
        """Raises `error`, or what the client raises."""
        where = where or os.environ.get(self._where)
        tree = tree or os.environ.get(self._tree)
        if not where or not tree:
            raise error(f"which tree's process is this? Neither given nor in {self._where} and {self._tree}")
        engine_id, _, incarnation = tree.rpartition(".")
        if not re.fullmatch(NAME, engine_id):
            raise error(f"{tree!r} is no start of an engine: its name is ENGINE_ID.RANDOM")
        key = (os.getpid(), self._absolute(where), tree)
        membership = self._joined.get(key)
        if membership is None or membership.closed:
            membership = self._joined[key] = self._make(key[1], Me(engine_id, incarnation, os.getpid(), False), on_lost)
            membership.begin()
        try:
            membership.await_welcome(timeout_s)
        except error:
            del self._joined[key]
            membership.close()  # a process that was refused must not keep the life lock of a dead tree
            raise
        return membership
