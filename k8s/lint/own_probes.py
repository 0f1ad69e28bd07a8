"""What kubelet asks a pod of ours, and how long it waits for an end."""

from pathlib import PurePosixPath

from . import programs
from .node import Node
from .pods import Pod, Role
from .programs import Program

_PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "engine-shim": {"startupProbe": ("/startup",), "livenessProbe": ("/live",), "readinessProbe": ("/ready",)},
    "lockserver": {"startupProbe": ("/live",), "livenessProbe": ("/live",), "readinessProbe": ()},
    "gms": {"startupProbe": ("/startup", "/live"), "livenessProbe": ("/live",), "readinessProbe": ()},
    "gateway": {"startupProbe": ("/live", "/ready"), "livenessProbe": ("/live",), "readinessProbe": ("/ready",)},
    "failover": {"startupProbe": ("/live", "/ready"), "livenessProbe": ("/live",), "readinessProbe": ("/ready",)},
}
_PORT_OPTIONS = {
    "engine-shim": ("probe",),
    "lockserver": ("metrics",),
    "gms": ("metrics",),
    "gateway": ("listen", "metrics"),
    "failover": ("listen",),
}
_NEVER_PASSES = {
    "startupProbe": "the pod never starts",
    "livenessProbe": "the container is ended again and again",
    "readinessProbe": "the pod is never Ready",
}
EXEC_TIMEOUT_S = 5
EXIT_STARTUP_S = 600
LIVENESS_GRACE_S = 10
SERVERS_END_S = 5


def listens(program: Program) -> tuple[str, int] | None:
    """Where it serves, if it is told a TCP address."""
    given = program.option("listen")
    if isinstance(given, tuple):
        return given[0], given[1]
    if given is not None and getattr(given, "path", "") in ("", None) and getattr(given, "port", None):
        return given.host, given.port
    return None


def _addresses(program: Program) -> dict[str, tuple[str, int]]:
    found = {}
    for name in _PORT_OPTIONS[program.name]:
        given = listens(program) if name == "listen" else program.option(name)
        if isinstance(given, tuple):
            found[name] = given
    return found


def check(pod: Pod, ours: list[Program]) -> None:
    doors = [program for program in ours if program.name == "gateway"]
    engines = [program for program in ours if program.name in programs.ENGINES]
    for program in ours:
        if not program.wrong and program.container.node["command"]:
            _own_ports(program)
        for kind, probe in program.container.probes():
            _probe(pod, program, kind, probe)
        for kind in ("startupProbe", "livenessProbe"):
            if program.container.role is not Role.INIT and not program.container.node[kind]:
                program.container.node["name"].warn(f"{program.name} has no {kind}")
    for pair in (program for program in ours if program.name == programs.PAIR):
        _ending(pod, pair)
    for engine in engines:
        if engine.container.node["readinessProbe"]:
            engine.container.node["readinessProbe"].warn(
                "a pod is ready when all its containers are: an engine that restarts would take it out of its Service"
            )
        _ending(pod, engine)
    for door in (*doors, *(program for program in ours if program.name == programs.PAIR)):
        if not door.container.node["readinessProbe"]:
            door.container.node["name"].warn(
                "the gateway has no readinessProbe: only it knows whether an engine serves"
            )
    _taken(engines, doors)


def check_commands(pod: Pod) -> None:
    """Our commands as probes, whatever the container runs, and one that an init container may not run."""
    for container in pod.containers:
        if container.role is Role.INIT and _pings_for_ever(container.words):
            container.node["command"].warn("`lockctl ping` without --count never ends, and the pod never starts")
        for kind, probe in container.probes():
            command = probe.at("exec", "command").texts()
            name = PurePosixPath(command[0]).name if command else ""
            why = programs.tool_problem(name, tuple(command[1:])) if name in programs.TOOLS else ""
            if why:
                probe["exec"].error(why)
            elif _pings_for_ever(command):
                probe["exec"].warn(
                    f"`lockctl ping` without --count never ends: each probe times out, and {_NEVER_PASSES[kind]}"
                )
            if name in ("lockctl", "gmsctl") and (probe["timeoutSeconds"].number or 1) < EXEC_TIMEOUT_S:
                probe.warn(f"timeoutSeconds below {EXEC_TIMEOUT_S}: a Python that starts on a busy node takes longer")


def _pings_for_ever(command: list[str]) -> bool:
    is_lockctl = bool(command) and PurePosixPath(command[0]).name == "lockctl"
    return is_lockctl and "ping" in command and programs.value_of(command, "--count") is None


def _own_ports(program: Program) -> None:
    declared = {number for number, _, _ in program.container.ports()}
    for name, (host, port) in _addresses(program).items():
        where = program.container.node["command"]
        if host in ("127.0.0.1", "::1", "localhost"):
            where.error(f"--{name} {host}:{port}: kubelet asks the pod's own address; give :{port}")
        if (name != "listen" or program.name != "engine-shim") and port not in declared:
            there = ", ".join(str(number) for number in sorted(declared)) or "none"
            where.error(f"--{name} is on port {port}, which the container doesn't declare; it declares: {there}")


def _probe(pod: Pod, program: Program, kind: str, probe: Node) -> None:
    http, command = probe["httpGet"], probe.at("exec", "command").texts()
    if http:
        _http(program, kind, http)
    if command:
        _exec(program, kind, probe, command)
    grace = probe["terminationGracePeriodSeconds"].number
    if kind == "livenessProbe" and (pod.grace_s if grace is None else grace) > LIVENESS_GRACE_S:
        probe.warn(
            "a short terminationGracePeriodSeconds belongs here: a program that doesn't answer doesn't mind SIGTERM"
        )
    if command and kind != "readinessProbe":
        path = _PATHS[program.name][kind][0]
        probe.warn(
            f"an exec costs a start of Python each time, of what the container's own start needs; {program.name} "
            f"answers {path} over HTTP"
        )
    if kind == "startupProbe" and program.option("restart") == "exit" and program.name in programs.ENGINES:
        period, most = probe["periodSeconds"].number or 10, probe["failureThreshold"].number or 3
        if period * most < EXIT_STARTUP_S:
            probe.warn(f"with --restart exit it has to last for all of Init: {period} s x {most} is {period * most} s")


def _http(program: Program, kind: str, http: Node) -> None:
    answered = _PATHS[program.name][kind]
    text = http["path"].text
    if program.name in ("lockserver", "gms"):
        answered = (*answered, "/metrics")
    if program.container.node["command"] and text not in answered:
        http["path"].error(f"{program.name} answers {' or '.join(answered)} to a {kind}, and not {text or '/'}")
    addresses = _addresses(program)
    if program.wrong or not addresses:
        return
    port = http["port"]
    number = port.number
    if port.text:
        number = next((own for own, name, _ in program.container.ports() if name == port.text), None)
    ours = {each[1] for each in addresses.values()}
    if number is not None and number not in ours:
        port.error(f"{program.name} answers on {' and '.join(map(str, sorted(ours)))}, and not on {number}")


def _exec(program: Program, kind: str, probe: Node, command: list[str]) -> None:
    name = PurePosixPath(command[0]).name
    wanted = {"lockserver": "lockctl", "gms": "gmsctl"}.get(program.name)
    if wanted and program.container.node["command"] and (name != wanted or "ping" not in command):
        probe["exec"].warn(f"{wanted} ping is meant?")


def _ending(pod: Pod, engine: Program) -> None:
    node = engine.container.node
    sleep = node.at("lifecycle", "preStop", "sleep", "seconds").number
    if sleep is None and not node.at("lifecycle", "preStop") and node["command"]:
        node["lifecycle"].warn(
            "there is no preStop sleep: from SIGTERM on new requests get 503, while Services still send them here"
        )
    drain = engine.option("drain_s")
    if isinstance(drain, (int, float)):
        total = (sleep or 0) + drain
        if total > pod.grace_s:
            node["lifecycle"].error(
                f"{sleep or 0} s of preStop and {drain:g} s of --drain-s are more than the grace of {pod.grace_s} s: "
                "streams would be cut"
            )
        elif total + SERVERS_END_S > pod.grace_s:
            node["lifecycle"].warn(f"{total:g} s of {pod.grace_s} s are used up before the sidecars may end")


def _taken(engines: list[Program], doors: list[Program]) -> None:
    for door in doors:
        own = {address[1] for address in _addresses(door).values()}
        for engine in engines:
            address = listens(engine)
            if address is not None and address[1] in own:
                engine.container.node["command"].error(f"the gateway has port {address[1]}: leave --listen out")
