"""What the lock's client refuses before it asks any server."""

import os
from pathlib import Path

import pytest

from evidence.rules import client_events as c
from evidence.rules.standing import Me
from lockserver.client import LockError, Membership, end_process, join
from tests.support.descriptors import no_descriptor_leaks


@pytest.mark.parametrize("tree", ["a/b.0000000000000000", ".0000000000000000", "a", "../a.0000000000000000"])
def test_what_is_no_start_of_an_engine_is_not_joined(tmp_path: Path, tree: str) -> None:
    with pytest.raises(LockError, match=r"is no start of an engine: its name is ENGINE_ID\.RANDOM"):
        join(tmp_path, tree, timeout_s=1)
    assert list(tmp_path.iterdir()) == []


def test_only_a_main_process_vouches_for_a_child(tmp_path: Path) -> None:
    descriptors = os.listdir("/proc/self/fd")
    member = Membership(tmp_path, Me("a", "0" * 16, os.getpid(), False), end_process)
    with pytest.raises(LockError, match=r"only the main process of a\.0{16} vouches for a child"):
        member.vouch_for(os.getpid())
    member.close()
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("when", ["before", "meanwhile", "forked"])
def test_a_client_that_cant_vouch_any_more_keeps_nothing_of_the_child(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_descriptor_leaks():
        member = Membership(tmp_path, Me("a", "0" * 16, os.getpid(), True), end_process)
        if when == "before":
            member.close()
        elif when == "meanwhile":
            opens = os.pidfd_open

            def closes_and_opens(pid: int) -> int:
                member.close()
                return opens(pid)

            monkeypatch.setattr(os, "pidfd_open", closes_and_opens)
        else:
            monkeypatch.setattr(member.loop, "_pid", 1)
        before = os.listdir("/proc/self/fd")
        with pytest.raises(LockError, match=r"closed|forked"):
            member.vouch_for(os.getpid())
        assert len(os.listdir("/proc/self/fd")) <= len(before)
        monkeypatch.undo()
        member.close()


def test_a_copy_that_comes_twice_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of its descriptors would stay open."""
    with no_descriptor_leaks():
        member = Membership(tmp_path, Me("a", "0" * 16, os.getpid(), True), end_process)
        for numbers, more in (([2, 2], False), ([3, 2], True)):
            came = [os.pidfd_open(os.getpid()) for _ in numbers]
            monkeypatch.setattr(member.connection, "take_descriptors", lambda came=came: came)
            member.effects[c.KeepCopies](member, c.KeepCopies("a.0", numbers, more))
        member.close()
