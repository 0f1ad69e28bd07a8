"""Who has a port: what is said to a process that can't have it."""

import os
import socket

import pytest

from sidecar.kernel import port_owner
from sidecar.wire import tcp


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_the_process_that_listens_is_named(host: str) -> None:
    with tcp.listen(host, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(tcp.CannotListen) as refused:
            tcp.listen(host, port)
        said = port_owner.way_out(refused.value, "--listen")
        assert said.startswith(f"Address already in use by process {os.getpid()} (")
        assert said.endswith("); give another --listen")
    assert port_owner.owner(port) == ""


def test_an_address_that_is_not_in_use_has_no_owner() -> None:
    with pytest.raises(tcp.CannotListen) as refused:
        tcp.listen("192.0.2.1", 1)
    assert port_owner.way_out(refused.value, "--probe") == f"{refused.value.why}; give another --probe"
    assert not refused.value.taken


def test_a_socket_that_only_is_connected_owns_nothing() -> None:
    with tcp.listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        assert port_owner.owner(client.getsockname()[1]) == ""
