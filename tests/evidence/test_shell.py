"""What a server's shell makes of life files that it can't look at. Real processes: `tests/vram`, `tests/chaos`."""

import errno
from io import StringIO
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from evidence.rules import events as e
from evidence.rules import messages as m
from evidence.shell import lifefiles
from evidence.shell.shell import EvidenceShell
from sidecar.kernel.lifelock import LifeProbe
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Protocol
from tests.evidence.parts import NAME


def test_what_cant_be_looked_at_is_said_once_however_often_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth of a second it would be, while a grant waits for it."""
    words = StringIO()
    spoken = Protocol(msgspec.msgpack.Decoder(m.Observe), lambda why: m.Problem(why=why))
    server = EvidenceShell(Log("test", stream=words), tmp_path, "auto", spoken, frozenset(), None)

    def refuses(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    def said() -> list[int]:
        for _ in range(2):
            server.probe_strangers(e.ProbeStrangers(()))
            server.probe_life(e.ProbeLife(NAME))
        lines = words.getvalue().splitlines()
        return [sum(f" life_file{plural}_unreadable " in line for line in lines) for plural in ("", "s")]

    server.directory.mkdir()
    life = server.directory / NAME
    life.touch()
    with monkeypatch.context() as patched:
        patched.setattr(LifeProbe, "open", refuses)
        assert said() == [1, 0]
        patched.setattr(LifeProbe, "open", lambda *_: None)
        life.unlink()
        assert said() == [1, 0]
        life.touch()
        patched.setattr(LifeProbe, "open", refuses)
        assert said() == [2, 0], "another one under that name"
    with monkeypatch.context() as patched:
        patched.setattr(lifefiles, "names", refuses)
        assert said() == [2, 1]
    assert said() == [2, 1]
    monkeypatch.setattr(lifefiles, "names", refuses)
    assert said() == [2, 2], "and again after it was in order"
    server.stop_looking_at(NAME)
    server.processes.close()
    server.loop.close()
