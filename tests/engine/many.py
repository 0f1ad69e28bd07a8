"""Many models on one device: a lock server for all of their locks, one GMS, one ledger, an engine for each model."""

import contextlib
import dataclasses

from sidecar.wire.observer import ObserverError
from tests.engine.kinds import REFERENCE, Kind
from tests.engine.shims import House, Program, Shim
from tests.support.waiting import until
from vram.observer import Observer as Ledger
from vram.rules import messages as vm

GMS = ("--ledger", "--memory-wait-s", "2", "--capacity", "32MiB")
"""Two models' weights, of 4 MiB each, and one KV cache of 16 MiB."""


class Model(House):
    """One of the models: its run directory, and what answers there."""

    def __init__(self, host: "Host", name: str, kind: Kind | None = None) -> None:
        """Unless another is given, it is the reference engine with weights of its own."""
        super().__init__(host.house.directory)
        self.run_dir = host.directory / "lock" / name
        self.environment = host.house.environment
        self.host = host
        self.name = name
        own = ("--seed", str(len(name)), *REFERENCE.arguments)
        self.kind = kind or dataclasses.replace(REFERENCE, arguments=own)

    def engine(self, *more: str, arguments: tuple[str, ...] = ()) -> Shim:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        shim = Shim(self, self.kind, "a", "--host-dir", str(self.host.directory), *more, arguments=arguments)
        self.host.house.add(shim)
        shim.log.rename(shim.log.with_name(f"{self.name}.log"))
        shim.log = shim.log.with_name(f"{self.name}.log")
        return shim

    def wake(self) -> None:
        code, said = self.lockctl("wake")
        assert code == 0, said

    def sleep(self, *words: str) -> None:
        code, said = self.lockctl("sleep", *words)
        assert code == 0, said

    def serves(self) -> None:
        until(self.endpoint, f"{self.name} serves")
        self.answers_as_ever(REFERENCE)

    def rests(self, why: str = "") -> None:
        def it_does() -> bool:
            status = self.status()
            return status is not None and status.resting and status.state == "FREE" and why in status.resting_why

        until(it_does, f"{self.name} is at rest: {why}")


class Host:
    def __init__(self, house: House) -> None:
        self.house = house
        self.directory = house.directory / "host"
        (self.directory / "lock").mkdir(parents=True)
        self.ledger = self.start("vram", "--run-dir", str(self.directory), "--memory", "host", "--settle-s", "0.2")
        self.start("lockserver", "--locks", str(self.directory / "lock"), "--memory", "none", "--settle-s", "0.2")
        self.start("gms", "--run-dir", str(self.directory), "--devices", "host:0", *GMS)

    def start(self, name: str, *words: str) -> Program:
        program = Program(self.house, name, name, *words)
        self.house.add(program)
        return program

    def leased(self, *, gms: bool = False) -> dict[str, int]:
        """The engines' leases, or those that GMS has for weights."""
        leases: list[vm.LeaseState] = []
        with contextlib.suppress(ObserverError), Ledger(self.directory) as ledger:
            leases = ledger.ask(vm.AskStatus(), vm.Status).leases
        return {
            lease.name: sum(lease.bytes.values()) for lease in leases if lease.bytes and gms == ("gms/" in lease.name)
        }
