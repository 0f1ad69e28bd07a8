"""Where a pod of ours keeps things: the run directory, host devices, caches."""

from collections import Counter
from pathlib import PurePosixPath

from .formats import NoQuantity, quantity
from .node import Node
from .pods import Container, Pod
from .programs import Program

_WRITTEN = (
    "HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "HF_HUB_CACHE", "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "OUTLINES_CACHE_DIR",
)  # fmt: skip
RUN_BYTES_MIN = 16 << 20
IMAGE_PACKAGES = PurePosixPath("/opt/gpu-failover/packages")  # k8s/images/sidecar.Containerfile


def path(text: str) -> PurePosixPath:
    return PurePosixPath(text)


def mount_of(container: Container, place: PurePosixPath) -> Node | None:
    """What is mounted closest above this path, or at it."""
    above = [
        mount
        for mount in container.mounts()
        if mount["mountPath"].text.startswith("/") and place.is_relative_to(mount["mountPath"].text)
    ]
    return max(above, key=lambda mount: len(mount["mountPath"].text.rstrip("/")), default=None)


def _volume(mount: Node) -> tuple[str, str]:
    return mount["name"].text, mount["subPath"].text or mount["subPathExpr"].text


def check(pod: Pod, ours: list[Program]) -> None:
    run = _shared(pod, [(program, program.run_dir) for program in ours if not program.wrong], "FAILOVER_RUN_DIR")
    if run is not None:
        _run_volume(pod, ours, run)
    devices = [(program, _host_devices(program)) for program in ours if _needs_host_devices(program, ours)]
    volume = _shared(pod, devices, "FAILOVER_HOST_DEVICES")
    if volume is not None:
        _capacity(pod, ours, volume)
    for program in ours:
        _writable(program)
        _python_path(pod, program.container)
        _own_packages(program.container)
    _shm(pod, ours)


def _shared(pod: Pod, users: list[tuple[Program, PurePosixPath | None]], variable: str) -> str | None:
    """The volume in which all of them have the same directory; what is wrong is reported."""
    said = [(program, place) for program, place in users if place is not None]
    if not said:
        return None
    wanted = Counter(place for _, place in said).most_common(1)[0][0]
    volumes: Counter[tuple[str, str]] = Counter()
    for program, place in users:
        where = program.container.node["env"] or program.container.node["name"]
        if place is None:
            if program.container.node["command"]:
                where.error(f"{variable} is missing; the others have {wanted}")
            continue
        if place != wanted:
            where.error(f"{variable} is {place} here and {wanted} elsewhere: they would never meet")
        mount = mount_of(program.container, place)
        if mount is None:
            where.error(f"{place} lies on no volume of {program.container.name}: no other container sees it")
            continue
        volumes[_volume(mount)] += 1
        _mount(pod, mount, place, variable)
    if not volumes:
        return None
    usual = volumes.most_common(1)[0][0]
    for program, place in said:
        mount = mount_of(program.container, place)
        if mount is not None and _volume(mount) != usual:
            mount["name"].error(f"{place} is on another volume here than elsewhere ({usual[0]}): they would never meet")
    return usual[0]


def _mount(pod: Pod, mount: Node, place: PurePosixPath, variable: str) -> None:
    at_the_mount = place == path(mount["mountPath"].text) and not mount["subPath"] and not mount["subPathExpr"]
    if at_the_mount and variable == "FAILOVER_HOST_DEVICES":
        mount["mountPath"].error(
            f"{place} is the mount itself, root's and open to others: GMS refuses it; take a directory below it"
        )
    elif at_the_mount and pod.spec.at("securityContext", "fsGroup"):
        mount["mountPath"].warn(f"{place} is the mount itself, 2777 and root's with fsGroup; take a directory below it")
    if mount["readOnly"].flag:
        mount["readOnly"].error(f"{place} has to be written")


def _run_volume(pod: Pod, ours: list[Program], name: str) -> None:
    volume = pod.volumes.get(name)
    if volume is None:
        return
    empty = volume["emptyDir"]
    if volume["hostPath"] or volume["nfs"] or volume["persistentVolumeClaim"]:
        volume.warn("the run directory belongs into an emptyDir: it holds sockets and locks, and ends with the pod")
    elif empty and empty["medium"].text != "Memory":
        empty.warn("medium: Memory is meant for the run directory: a grant waits until it is on disk")
    limit = _bytes(empty["sizeLimit"])
    if limit is not None and 0 < limit < RUN_BYTES_MIN:
        empty["sizeLimit"].warn(f"{empty['sizeLimit'].value} is little for a run directory; a full one stops failover")
    for container in pod.containers:
        for variable in _WRITTEN:
            written = container.environment.get(variable)
            mount = mount_of(container, path(written)) if written else None
            if mount is not None and mount["name"].text == name:
                container.node["env"].error(f"{variable} is on the run directory's volume: full, it stops failover")


def _needs_host_devices(program: Program, ours: list[Program]) -> bool:
    """Lock server, GMS and engines, as soon as one of them is on host devices."""
    if program.wrong or program.name == "gateway":
        return False
    return any(_on_host(each) for each in ours)


def _on_host(program: Program) -> bool:
    if program.option("memory") == "host" or program.option("engine") == "reference":
        return True
    return any(name.startswith("host:") for name in program.option("devices") or ())


def _host_devices(program: Program) -> PurePosixPath | None:
    given = program.option("host_devices") or program.container.environment.get("FAILOVER_HOST_DEVICES")
    return path(str(given)) if given else None


def _capacity(pod: Pod, ours: list[Program], name: str) -> None:
    empty = pod.volumes[name]["emptyDir"] if name in pod.volumes else None
    if empty is not None and empty and empty["medium"].text != "Memory":
        empty.warn("medium: Memory is meant for host devices: a device is memory")
    for program in ours:
        capacity = program.option("capacity")
        if program.name != "gms" or not capacity or empty is None:
            continue
        devices = [device for device in program.option("devices") or () if device.startswith("host:")]
        wanted, limit = capacity * len(devices), _bytes(empty["sizeLimit"])
        if limit is not None and wanted > limit:
            program.container.node["command"].error(
                f"--capacity: {len(devices)} device(s) of {capacity >> 20} MiB don't fit into the volume {name}, whose "
                f"sizeLimit is {empty['sizeLimit'].value}"
            )
        memory = _bytes(program.container.node.at("resources", "limits", "memory"))
        if memory is not None and wanted > memory:
            program.container.node.at("resources", "limits", "memory").warn(
                "--capacity is more: pages count for the container that made them, and the kernel would kill it first"
            )


def _bytes(node: Node) -> int | None:
    try:
        return int(quantity(node.value)) if node else None
    except NoQuantity:
        return None


def _writable(program: Program) -> None:
    """With a root that can't be written, what is to be written has to be on a volume."""
    container = program.container
    if container.node.at("securityContext", "readOnlyRootFilesystem").flag is not True:
        return
    for each in container.node["env"].items():
        name, value = each["name"].text, each["value"].text
        if name not in _WRITTEN or not value:
            continue
        mount = mount_of(container, path(value))
        if mount is None or mount["readOnly"].flag:
            each["value"].error(f"{value} can't be written: the root is read-only, and no volume is there")
    if program.option("engine") == "vllm":
        for needed in ("/tmp", "/dev/shm"):
            if mount_of(container, path(needed)) is None:
                container.node["volumeMounts"].error(f"vLLM writes to {needed}: an emptyDir belongs there")
        if not container.environment.get("HOME"):
            container.node["env"].warn("HOME isn't set: vLLM's caches would go to a root that can't be written")
        if not container.environment.get("USER"):
            container.node["env"].warn("USER isn't set: a user without a name in the image ends torch's compiler")


def _python_path(pod: Pod, container: Container) -> None:
    for part in container.environment.get("PYTHONPATH", "").split(":"):
        mount = mount_of(container, path(part)) if part else None
        if part and mount is None:
            container.node["env"].warn(f"PYTHONPATH names {part}, which is on no volume: it has to be in the image")
        elif mount is not None:
            name = mount["name"].text
            writers = [
                other
                for other in pod.containers
                if other.place < container.place and any(each["name"].text == name for each in other.mounts())
            ]
            filled = name in pod.volumes and not pod.volumes[name]["emptyDir"]
            if not writers and not filled:
                mount["name"].error(f"nothing is put into the volume {name} before: {part} would be empty")
            for writer in writers:
                _copied(writer, mount, path(part))


def _copied(writer: Container, mount: Node, wanted: PurePosixPath) -> None:
    """What `cp` puts into a volume is looked for under the name that it gets there."""
    words = writer.words
    if not words or path(words[0]).name != "cp":
        if writer.node["command"]:
            writer.node["command"].warn(
                f"{wanted} is to be filled here, and this is no cp: it can't be told whether it is"
            )
        return
    paths = [word for word in words[1:] if not word.startswith("-")]
    options = [word for word in words[1:] if word.startswith("-")]
    if len(paths) < 2 or not any("r" in word.lower() or "a" in word for word in options):
        writer.node["command"].error("cp needs -r, what to copy, and where to: a directory is to be copied")
        return
    inside = mount_of(writer, path(paths[-1]))
    if inside is None or inside["name"].text != mount["name"].text:
        writer.node["command"].error(f"cp writes to {paths[-1]}, which isn't on the volume {mount['name'].text}")
        return
    here = wanted.relative_to(mount["mountPath"].text)
    there = [(path(paths[-1]) / path(each).name).relative_to(inside["mountPath"].text) for each in paths[:-1]]
    if here not in there:
        writer.node["command"].error(f"cp makes {', '.join(map(str, there))} on the volume, and {wanted} is looked for")
    if any(path(each) != IMAGE_PACKAGES for each in paths[:-1]):
        writer.node["command"].warn(f"our image has what the engines need in {IMAGE_PACKAGES}")


def _own_packages(container: Container) -> None:
    """`python -m` finds us where PYTHONPATH says; an image that has us has our commands, too."""
    python = container.words[:1] and path(container.words[0]).name.startswith("python")
    if python and not container.environment.get("PYTHONPATH"):
        container.node["env"].warn(
            "PYTHONPATH isn't set: an image that has gpu-failover has its commands, such as engine-shim"
        )


def _shm(pod: Pod, ours: list[Program]) -> None:
    seen: dict[tuple[str, str], Container] = {}
    for program in ours:
        for mount in program.container.mounts():
            if mount["mountPath"].text.rstrip("/") != "/dev/shm":
                continue
            other = seen.setdefault(_volume(mount), program.container)
            if other is not program.container:
                mount["name"].error(
                    f"{other.name} has the same /dev/shm: nothing goes through it, and one could fill it"
                )
            empty = pod.volumes[mount["name"].text]["emptyDir"] if mount["name"].text in pod.volumes else None
            if empty is not None and empty and empty["medium"].text != "Memory":
                mount["name"].warn("/dev/shm belongs into memory: an emptyDir with medium: Memory and a sizeLimit")
