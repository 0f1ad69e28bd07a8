"""What a pod of ours needs: two engines, a lock server and GMS that meet in one directory, on the same GPUs.

Each rule is something that was stepped into; the comments in k8s/dra/one-gpu.yaml say why. Where things lie is in
`own_places.py`, what is probed in `own_probes.py`.
"""

import difflib
from collections.abc import Iterable
from functools import lru_cache

from engine_shim.cli import part_environment

from . import claim_rules, own_places, own_probes, programs
from .node import Document, Node
from .pods import Container, Pod, Role
from .programs import Program

_COMMANDS = (*programs.MODULES, *programs.TOOLS)
_OWN_MODULES = ("engine_shim", "engine_shim.cli.failover", *programs.SERVERS)
_LIKE_OURS = 0.8


def check(documents: list[Document], every: Iterable[Pod]) -> None:
    for pod in every:
        ours = [found for found in map(programs.program, pod.containers) if found is not None]
        _misspelt(pod)
        _image_alone(pod)
        own_probes.check_commands(pod)
        if not ours:
            continue
        for each in ours:
            if each.wrong:
                each.container.node["command"].error(each.wrong)
        _variables(pod, ours)
        engines = [each for each in ours if each.name in programs.ENGINES]
        _engines(pod, engines)
        _devices(pod, ours)
        for engine in engines:
            _ranks(pod, engine, documents)
        for pair in (each for each in ours if each.name == programs.PAIR):
            _arguments(pod, pair, pair)
        _pod_wide(pod, ours)
        _order(ours)
        _company(pod, ours)
        _restart(ours)
        own_places.check(pod, ours)
        own_probes.check(pod, ours)


def _misspelt(pod: Pod) -> None:
    for container in pod.containers:
        for word in list(container.node["command"].items())[:1]:
            if word.text.startswith("-"):
                word.error(f"{word.text} is a flag, and no program")
            words = container.words
            if words[1:2] == ["-m"] and words[2:]:
                like = difflib.get_close_matches(words[2], _OWN_MODULES, 1, _LIKE_OURS)
                if like and words[2] not in _OWN_MODULES:
                    word.warn(f"python -m {like[0]} is meant?")
            near = difflib.get_close_matches(word.text, _COMMANDS, 1, _LIKE_OURS)
            if near and word.text not in _COMMANDS:
                word.warn(f"{near[0]} is meant?")


def _image_alone(pod: Pod) -> None:
    """One container of an image that says its command, and another that leaves it to the image."""
    told = {container.node["image"].text: container for container in pod.containers if container.node["command"]}
    for container in pod.containers:
        other = told.get(container.node["image"].text)
        if other is not None and not container.node["command"]:
            container.node["name"].warn(
                f"no command, while {other.name} of the same image has one: the image's would run"
            )


def _variables(pod: Pod, ours: list[Program]) -> None:
    pairs = {program.container for program in ours if program.name == programs.PAIR}
    for container in pod.containers:
        pair = container in pairs
        for each in container.node["env"].items():
            name = each["name"].text
            near = _alike(name, pair)
            if name not in programs.variables(pair) and (name.startswith(part_environment.PREFIX) or near):
                hint = f"; {near[0]} is meant?" if near else ""
                each["name"].warn(f"none of our programs reads {name}{hint}")
        for sentence in part_environment.unused(container.environment) if pair else ():
            container.node["env"].warn(sentence)


@lru_cache(maxsize=1024)
def _alike(name: str, pair: bool) -> list[str]:
    return difflib.get_close_matches(name, sorted(programs.variables(pair)), 1, 0.9)


def _engines(pod: Pod, engines: list[Program]) -> None:
    ids: dict[str, Program] = {}
    for engine in engines:
        engine_id = engine.option("engine_id")
        other = ids.setdefault(engine_id, engine) if engine_id else engine
        if other is not engine:
            engine.container.node["env"].error(
                f"{other.container.name} is engine {engine_id}, too: the second to start would be refused"
            )
    primaries = [engine for engine in engines if engine.option("role") == "primary"]
    for engine in primaries[1:]:
        engine.container.node["env"].error(
            f"{primaries[0].container.name} is the primary already: two writers of several GPUs can wait for each other"
        )
    known = [engine for engine in engines if engine.option("role")]
    if known and not primaries and not any(engine.wrong for engine in engines):
        known[0].container.node["env"].error("no engine is the primary: none would ever load the weights")
    if len(engines) == 1:
        engines[0].container.node["name"].warn("one engine alone: there is none to take over")
    for engine in engines:
        _arguments(pod, engine, engines[0])


def _arguments(pod: Pod, engine: Program, first: Program) -> None:
    container = engine.container
    where = container.node["args"] or container.node["command"]
    if engine.arguments != first.arguments and engine.option("engine") == first.option("engine"):
        where.warn(
            f"other arguments than {first.container.name}'s: a standby is redundancy only if it takes each request "
            "that the other one takes"
        )
    if engine.option("engine") == "reference":
        _, why = programs.reference_options(engine.arguments)
        if why:
            where.error(why)
    if engine.option("engine") == "vllm" and not engine.wrong:
        for flag in ("--host", "--port"):
            if programs.value_of(engine.arguments, flag) is not None:
                where.warn(f"{flag} means nothing here: the engine listens where --listen of engine-shim says")
        model = engine.arguments[0] if engine.arguments else ""
        if not model or model.startswith("-"):
            model = programs.value_of(engine.arguments, "--model") or ""
        if not model:
            where.error("no model is named: it is the first argument behind --")
        elif model.startswith("/") and own_places.mount_of(container, own_places.path(model)) is None:
            where.warn(f"{model} lies on no volume: it has to be in the image")
    given = own_probes.listens(engine)
    if given is not None and given[0] in ("127.0.0.1", "::1", "localhost"):
        where.error(f"--listen {given[0]}: no client outside the pod could reach it; give :{given[1]}")


def _claims(program: Program) -> set[tuple[str, str]]:
    claims = program.container.node.at("resources", "claims")
    return {(each["name"].text, each["request"].text) for each in claims.items()}


def _has_devices(program: Program) -> bool:
    limits = program.container.node.at("resources", "limits")
    return bool(_claims(program)) or any(name.endswith(".com/gpu") for name, _ in limits.fields())


def _devices(pod: Pod, ours: list[Program]) -> None:
    """Every part that looks at a GPU needs it, and all of them the same."""
    on_gpus: list[tuple[Program, str]] = []
    gpus_here = any(_has_devices(program) for program in ours)
    for program in ours:
        if program.wrong:
            continue
        memory, devices, engine = program.option("memory"), program.option("devices"), program.option("engine")
        if program.name == "lockserver" and (memory == "nvml" or (memory == "auto" and gpus_here)):
            on_gpus.append((program, f"--memory {memory}: NVML sees no GPU, and memory can't be part of the proof"))
        elif program.name == "gms" and devices and not any(name.startswith("host:") for name in devices):
            on_gpus.append((program, "there is no GPU to keep weights on"))
        elif engine == "vllm" and "host:" not in program.container.environment.get("FAILOVER_VLLM_DEVICES", ""):
            on_gpus.append((program, "vLLM has no GPU"))
    for program, why in on_gpus:
        if not _has_devices(program):
            program.container.node["resources"].error(f"{program.name} names no claim: {why}")
    _host_devices(ours)
    claimed = [(program, _claims(program)) for program, _ in on_gpus if _claims(program)]
    for program, claims in claimed[1:]:
        if claims != claimed[0][1]:
            program.container.node.at("resources", "claims").error(
                f"other claims than {claimed[0][0].container.name}'s: both have to be on the same GPUs"
            )
    if pod.spec["resourceClaims"].value and any(program.option("memory") == "auto" for program in ours):
        lock = next(program for program in ours if program.option("memory") == "auto")
        lock.container.node["command"].warn("--memory auto goes on without a reader; nvml ends at once and says why")


def _host_devices(ours: list[Program]) -> None:
    """A reference engine keeps its weights on devices that GMS has."""
    kept = {device for program in ours if program.name == "gms" for device in program.option("devices") or ()}
    for program in ours:
        if program.option("engine") != "reference" or not kept:
            continue
        options, _ = programs.reference_options(program.arguments)
        missing = [device for device in getattr(options, "devices", ()) if device not in kept]
        if missing:
            where = program.container.node["args"] or program.container.node["command"]
            where.error(f"its --devices {', '.join(missing)}: gms has {', '.join(sorted(kept))}")


def _ranks(pod: Pod, engine: Program, documents: list[Document]) -> None:
    """As many GPUs as the engine has ranks."""
    text = programs.value_of(engine.arguments, "--tensor-parallel-size", "-tp") or "1"
    count = sum(_count(pod, use, documents) for use in engine.container.node.at("resources", "claims").items())
    if engine.option("engine") != "vllm" or not text.isdigit() or not count:
        return
    where = engine.container.node["args"] or engine.container.node["command"]
    if count < int(text):
        where.error(f"--tensor-parallel-size {text} needs as many GPUs, and the claim has {count}")
    elif count > int(text):
        where.warn(f"the claim has {count} GPUs, and --tensor-parallel-size is {text}: the rest would lie idle")


def _count(pod: Pod, use: Node, documents: list[Document]) -> int:
    """How many devices this use of a claim is; 0 where that can't be known."""
    names = {
        claim[key].text
        for claim in pod.spec["resourceClaims"].items()
        if claim["name"].text == use["name"].text
        for key in ("resourceClaimName", "resourceClaimTemplateName")
    } - {""}
    named = [document for document in documents if document.root.at("metadata", "name").text in names]
    own = [document for document in named if document.file == pod.document.file]
    total = 0
    for document in own or named:
        for spec in claim_rules.claim_specs(document.root):
            for request in spec.at("devices", "requests").items():
                if use["request"].text not in ("", request["name"].text):
                    continue
                if not request["exactly"] or request.at("exactly", "allocationMode").text == "All":
                    return 0
                number = request.at("exactly", "count").number
                total += 1 if number is None else number
    return total


def _pod_wide(pod: Pod, ours: list[Program]) -> None:
    spec = pod.spec
    if spec["shareProcessNamespace"].flag:
        spec["shareProcessNamespace"].error(
            "PID 1 of an engine's container has to be its shim: only so its end is the end of all its processes"
        )
    if spec["enableServiceLinks"].flag is not False:
        spec["enableServiceLinks"].warn(
            "not false: a Service named vllm would set VLLM_PORT=tcp://..., and vLLM ends; FAILOVER_* are ours"
        )
    if spec["automountServiceAccountToken"].flag is not False:
        spec["automountServiceAccountToken"].warn("not false: nothing here needs the API server")
    if spec["hostNetwork"].flag:
        spec["hostNetwork"].warn(
            "two such pods on one node need different run directories: the lock server is known by its path in the "
            "network namespace"
        )
    users = {_user(pod, program): program for program in reversed(ours)}
    for user, program in list(users.items())[1:]:
        program.container.node["securityContext"].error(
            f"user {user} where another of our containers has {next(iter(users))}: sockets are 0600, devices 0700"
        )
    for container in pod.containers:
        _locked_down(pod, container)
    default = pod.metadata.at("annotations")["kubectl.kubernetes.io/default-container"]
    if default and default.text not in [container.name for container in pod.containers]:
        default.warn(f"there is no container {default.text}: `kubectl exec` and `logs` would ask for one")
    if pod.kind == "Deployment":
        _rollout(pod, pod.document.root.at("spec", "strategy"))


def _user(pod: Pod, program: Program) -> int | None:
    own = program.container.node.at("securityContext", "runAsUser").number
    return pod.spec.at("securityContext", "runAsUser").number if own is None else own


def _locked_down(pod: Pod, container: Container) -> None:
    """Pod Security's `restricted`, and a root that can't be written: all of it works, so no container needs more."""
    own, outer = container.node["securityContext"], pod.spec["securityContext"]
    wanted = (
        (own["allowPrivilegeEscalation"].flag is False, "allowPrivilegeEscalation: false"),
        (own["readOnlyRootFilesystem"].flag is True, "readOnlyRootFilesystem: true"),
        ("ALL" in own.at("capabilities", "drop").texts(), "capabilities: {drop: [ALL]}"),
        ((own["runAsNonRoot"] or outer["runAsNonRoot"]).flag is True, "runAsNonRoot: true"),
        (bool((own["seccompProfile"] or outer["seccompProfile"])["type"]), "seccompProfile: {type: RuntimeDefault}"),
        (bool(outer["fsGroup"]), "the pod's fsGroup"),
    )
    missing = [what for there, what in wanted if not there]
    if missing:
        own.warn(f"{container.name} needs no more than this, which isn't said: {', '.join(missing)}")


def _rollout(pod: Pod, strategy: Node) -> None:
    claims = bool(pod.spec["resourceClaims"].value)
    surge = strategy.at("rollingUpdate", "maxSurge").value
    if claims and strategy["type"].text != "Recreate" and str(surge) not in ("0", "0%"):
        strategy.warn("maxSurge isn't 0: an update would need a second set of GPUs before the first is given back")


def _order(ours: list[Program]) -> None:
    servers = [program for program in ours if program.name in programs.SERVERS]
    for program in servers:
        if program.container.role is Role.MAIN:
            program.container.node["name"].warn(
                f"{program.name} should be a native sidecar: it has to be there before the engines, and end after them"
            )
    doors = [program for program in servers if program.name == "gateway"]
    for door in doors:
        later = [program.name for program in servers if program.container.place > door.container.place]
        if later:
            door.container.node["name"].warn(f"{later[0]} starts later and so ends before it; the gateway is the last")


def _company(pod: Pod, ours: list[Program]) -> None:
    """Engines need a lock server and GMS in their pod. A container without a command may be either, in its image."""
    there = {program.name for program in ours}
    if not there & set(programs.ENGINES) or not all(container.node["command"] for container in pod.containers):
        return
    for name, what in (("lockserver", "never be granted the lock"), ("gms", "wait for weights for ever")):
        if name not in there:
            pod.spec["containers"].warn(f"no container runs {name}: the engines would {what}")


def _restart(ours: list[Program]) -> None:
    """A server's own default is to end with its container, which is seldom meant; who means it says so."""
    for program in ours:
        told = program.container.environment.get("FAILOVER_RESTART") or "--restart" in " ".join(program.container.words)
        if program.option("restart") == "exit" and not told:
            program.container.node["env"].warn(
                f"{program.name} isn't told FAILOVER_RESTART: its container would end with it, and the pod be NotReady "
                "until kubelet has started it again; in-place starts it at once"
            )
