"""A name in the network namespace: one has it at a time, and a copy keeps it though its owner has gone."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from sidecar.kernel import exclusive_names
from sidecar.kernel.exclusive_names import Owner
from tests.support.children import Child, stay
from tests.support.descriptors import no_descriptor_leaks


def test_one_has_a_name_until_every_copy_is_closed(tmp_path: Path) -> None:
    name = f"lock {tmp_path}"
    with no_descriptor_leaks():
        first = exclusive_names.take(name)
        assert first is not None
        copy = os.dup(first.fileno())
        assert exclusive_names.take(name) is None
        first.close()
        assert exclusive_names.take(name) is None, "a process still has a copy"
        os.close(copy)
        second = exclusive_names.take(name)
        assert second is not None
        second.close()
        assert exclusive_names.owner(name) is None


def test_its_owner_is_named_also_while_it_is_stopped(tmp_path: Path) -> None:
    name = f"lock {tmp_path}"

    def own(say: Callable[[str], None]) -> None:
        kept = exclusive_names.take(name)
        say("taken")
        stay()
        assert kept is not None

    with Child(own) as child:
        child.line()
        os.kill(child.pid, signal.SIGSTOP)
        assert exclusive_names.owner(name) == Owner(child.pid, os.getuid())
        assert str(child.pid) in str(exclusive_names.owner(name))


def test_who_asks_is_let_go_again(tmp_path: Path) -> None:
    name = f"lock {tmp_path}"
    with no_descriptor_leaks():
        taken = exclusive_names.take(name)
        assert taken is not None
        for _ in range(3):
            assert exclusive_names.owner(name) == Owner(os.getpid(), os.getuid())
        exclusive_names.accept_all(taken)
        taken.close()
