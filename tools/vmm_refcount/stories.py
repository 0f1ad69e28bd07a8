"""The experiment, stage by stage. First that of the specification's Decision 7, in its order; then what GMS leans on
beyond it.

Each story begins with an empty device and processes of its own. Contents are written by one process and compared in
another, because memory that is merely not free could still be other memory.
"""

from tools.vmm_refcount.processes import Process
from tools.vmm_refcount.stage import Stage

WORDS = "these are the weights"


def decision_7(stage: Stage) -> None:
    """Does the creator's release free memory that another process has imported?"""
    with stage.story("Decision 7: the creator releases while another has an imported handle"):
        size = stage.size
        stage.baseline()
        server, client = stage.process("server"), stage.process("client")

        def allocate_and_import() -> None:
            server.create("w", size)
            server.export("w")
            server.send("w", client)
            server.close_descriptor("w")
            client.import_("w", size)
            client.close_descriptor("w")

        stage.step("alloc + client import", allocate_and_import, expected=size, decision_7="+1195 MiB (with contexts)")
        stage.step("the server releases its handle", lambda: server.release("w"), expected=0, decision_7="+0 MiB")
        stage.step("the client releases its handle", lambda: client.release("w"), expected=-size, decision_7="-512 MiB")

        def both_die() -> None:
            server.kill()
            client.kill()

        stage.step("both processes are killed", both_die, expected=0, decision_7="+0 MiB (baseline)")


def mapped_only(stage: Stage) -> None:
    """A mapping alone keeps memory, without a handle or a descriptor anywhere."""
    with stage.story("a mapping is all that is left"):
        size = stage.size
        server, client = stage.process("server"), stage.process("client")
        stage.context(server, client)
        stage.step("alloc, written, client import and map", lambda: _shared(stage, server, client), expected=size)
        stage.step("the client releases its handle", lambda: client.release("w"), expected=0)
        stage.kill(server, expected=0)
        stage.step("the client reads what was written", lambda: client.expect("a", WORDS), expected=0)
        stage.step("the client unmaps", lambda: client.unmap("a"), expected=-size)


def killed_while_mapped(stage: Stage) -> None:
    """The fence of the whole design: death gives memory back, whatever the dead had of it."""
    with stage.story("the last one is killed with handle, descriptor and mapping in hand"):
        size = stage.size
        server, client = stage.process("server"), stage.process("client")
        stage.context(server, client)
        stage.step("alloc, written, client import and map", lambda: _shared(stage, server, client), expected=size)
        stage.kill(server, expected=0)
        stage.kill(client, expected=-size)


def descriptor_only(stage: Stage) -> None:
    """How GMS keeps weights: no handle, an open descriptor."""
    with stage.story("the handle is released, the descriptor still open"):
        size = stage.size
        server = stage.process("server")
        stage.step("alloc", lambda: server.create("w", size), expected=size)
        stage.step("the server exports a descriptor", lambda: server.export("w"), expected=0)
        stage.step("the server releases its handle", lambda: server.release("w"), expected=0)
        stage.step("the server closes the descriptor", lambda: server.close_descriptor("w"), expected=-size)


def descriptor_elsewhere(stage: Stage) -> None:
    """How weights outlive GMS: a reader keeps the descriptor."""
    with stage.story("the exporter is dead, a third process has the descriptor"):
        size = stage.size
        server, third = stage.process("server"), stage.process("third process")

        def give() -> None:
            server.create("w", size)
            server.export("w")
            server.send("w", third)

        stage.step("alloc, and the descriptor goes to a third process", give, expected=size)
        stage.kill(server, expected=0)
        stage.kill(third, expected=-size)


def forwarded(stage: Stage) -> None:
    """The hand-back after a crash of GMS: the descriptor goes on from one who never imported it."""
    with stage.story("forwarded by a process that never imported it, mapped by a fourth"):
        size = stage.size
        server, third, fourth = (stage.process(name) for name in ("server", "third process", "fourth process"))
        stage.context(server, fourth)

        def give() -> None:
            server.create("w", size)
            server.map("w", "a", size, writable=True)
            server.poke("a", WORDS)
            server.export("w")
            server.send("w", third)

        def forward() -> None:
            third.send("w", fourth)
            fourth.import_("w", size)
            fourth.map("w", "a", size)
            fourth.expect("a", WORDS)

        stage.step("alloc, written, and the descriptor goes to a third process", give, expected=size)
        stage.kill(server, expected=0)
        stage.step("the third forwards it; the fourth imports, maps and reads it", forward, expected=0)
        stage.kill(third, expected=0)
        stage.step("the fourth closes its descriptor", lambda: fourth.close_descriptor("w"), expected=0)
        stage.step("the fourth releases its handle", lambda: fourth.release("w"), expected=0)
        stage.step("the fourth unmaps", lambda: fourth.unmap("a"), expected=-size)


def exported_again(stage: Stage) -> None:
    """Can imported memory be exported once more?"""
    with stage.story("an imported handle is exported again"):
        size = stage.size
        server, second, third = (stage.process(name) for name in ("server", "second process", "third process"))
        stage.context(server, third)

        def again() -> None:
            second.export("w")
            second.send("w", third)
            third.import_("w", size)
            third.map("w", "a", size)
            third.expect("a", WORDS)

        stage.step(
            "alloc, written, and a second process imports it", lambda: _imported(stage, server, second), expected=size
        )
        stage.kill(server, expected=0)
        stage.step("the second exports it again; a third imports, maps and reads it", again, expected=0)
        stage.kill(second, expected=0)
        stage.kill(third, expected=-size)


def two_addresses(stage: Stage) -> None:
    """One handle, two mappings: the same bytes, and each counts."""
    with stage.story("one handle is mapped at two addresses"):
        size = stage.size
        server = stage.process("server")
        stage.context(server)

        def twice() -> None:
            server.map("w", "a", size, writable=True)
            server.map("w", "b", size)
            server.poke("a", WORDS)
            server.expect("b", WORDS)

        stage.step("alloc", lambda: server.create("w", size), expected=size)
        stage.step("mapped twice, written at one, read at the other", twice, expected=0)
        stage.step("the handle is released", lambda: server.release("w"), expected=0)
        stage.step("the first is unmapped", lambda: server.unmap("a"), expected=0)
        stage.step("the second still reads the same", lambda: server.expect("b", WORDS), expected=0)
        stage.step("the second is unmapped", lambda: server.unmap("b"), expected=-size)


def at_an_offset(stage: Stage) -> None:
    """Part of a handle, in its own process and imported."""
    with stage.story("mapping at an offset"):
        size, half = stage.size, stage.half
        server, client = stage.process("server"), stage.process("client")
        stage.context(server, client)

        def write() -> None:
            server.create("w", size)
            server.map("w", "a", size, writable=True)
            server.poke("a", WORDS, offset=half)
            server.export("w")
            server.send("w", client)
            client.import_("w", size)

        def own_half() -> None:
            server.map("w", "b", size - half, offset=half)
            server.expect("b", WORDS)

        def imported_half() -> None:
            client.map("w", "b", size - half, offset=half)
            client.expect("b", WORDS)

        stage.step("alloc, written in the middle, client import", write, expected=size)
        stage.step("the server maps the second half alone and reads it", own_half, expected=0)
        stage.step("the client maps the second half alone and reads it", imported_half, expected=0)
        stage.kill(server, expected=0)
        stage.step("the client closes its descriptor", lambda: client.close_descriptor("w"), expected=0)
        stage.step(
            "the client releases its handle: half of it is still mapped", lambda: client.release("w"), expected=0
        )
        stage.step("the client unmaps that half", lambda: client.unmap("b"), expected=-size)


def _imported(stage: Stage, server: Process, other: Process) -> None:
    """Written by the one, in the other's hands as a handle and as nothing else."""
    server.create("w", stage.size)
    server.map("w", "a", stage.size, writable=True)
    server.poke("a", WORDS)
    server.export("w")
    server.send("w", other)
    other.import_("w", stage.size)
    other.close_descriptor("w")


def _shared(stage: Stage, server: Process, client: Process) -> None:
    _imported(stage, server, client)
    client.map("w", "a", stage.size)
    client.expect("a", WORDS)


STORIES = (
    decision_7,
    mapped_only,
    killed_while_mapped,
    descriptor_only,
    descriptor_elsewhere,
    forwarded,
    exported_again,
    two_addresses,
    at_an_offset,
)
