"""Security contexts: what the API refuses, and contradictions that it takes and that kubelet or the container minds.

From the API's validatePodSpecSecurityContext, ValidateSecurityContext and validateHostUsers.
"""

import re

from . import formats
from .node import Node
from .objects import complain, one_of
from .pods import Pod

ID_MAX = (1 << 31) - 1
_HOST = ("hostNetwork", "hostPID", "hostIPC")
# https://man7.org/linux/man-pages/man7/capabilities.7.html
CAPABILITIES = {
    "ALL", "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
    "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
    "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST",
    "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT",
    "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG",
    "WAKE_ALARM",
}  # fmt: skip


def check_pod(pod: Pod) -> None:
    spec, context = pod.spec, pod.spec["securityContext"]
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        _id(context[key])
    for group in context["supplementalGroups"].items():
        _id(group)
    if spec["shareProcessNamespace"].flag and spec["hostPID"].flag:
        spec["shareProcessNamespace"].error("shareProcessNamespace and hostPID can't both be on")
    one_of(context["fsGroupChangePolicy"], ("Always", "OnRootMismatch"))
    if context["fsGroupChangePolicy"] and not context["fsGroup"]:
        context["fsGroupChangePolicy"].error("without fsGroup it does nothing")
    one_of(context["supplementalGroupsPolicy"], ("Merge", "Strict"))
    one_of(context["seLinuxChangePolicy"], ("Recursive", "MountOption"))
    _profiles(context)
    _sysctls(pod)
    if spec["hostUsers"].flag is False:
        for key in _HOST:
            if spec[key].flag:
                spec[key].error("this can't be on with hostUsers: false")
    _root(context, context["runAsUser"], context["runAsNonRoot"])
    for container in pod.containers:
        _check_container(pod, container.node["securityContext"])


def _check_container(pod: Pod, context: Node) -> None:
    outer = pod.spec["securityContext"]
    for key in ("runAsUser", "runAsGroup"):
        _id(context[key])
    if context:
        _root(context, context["runAsUser"] or outer["runAsUser"], context["runAsNonRoot"] or outer["runAsNonRoot"])
    one_of(context["procMount"], ("Default", "Unmasked"))
    if context["procMount"].text == "Unmasked" and pod.spec["hostUsers"].flag is not False:
        context["procMount"].error("Unmasked needs hostUsers: false")
    _profiles(context)
    _capabilities(context)
    if context["privileged"].flag:
        if context["allowPrivilegeEscalation"].flag is False:
            context["allowPrivilegeEscalation"].error("it can't be false where privileged is true")
        if context.at("capabilities", "drop").value:
            context.at("capabilities", "drop").error("a privileged container keeps every capability")
        if context["seccompProfile"] or outer["seccompProfile"]:
            context["privileged"].warn("a privileged container runs without its seccomp profile")


def _root(context: Node, user: Node, non_root: Node) -> None:
    if non_root.flag and user.number == 0:
        context.error("runAsNonRoot with runAsUser 0: kubelet would never start it")
    if non_root.flag and user.number is None:
        non_root.warn("without runAsUser it depends on the image: kubelet refuses one whose user is a name, or root")


def _id(node: Node) -> None:
    if node.number is not None and not 0 <= node.number <= ID_MAX:
        node.error(f"{node.number} must be between 0 and {ID_MAX}")


def _profiles(context: Node) -> None:
    for key in ("seccompProfile", "appArmorProfile"):
        profile = context[key]
        if not profile:
            continue
        if not profile["type"].text:
            profile.error("type is missing")
        elif one_of(profile["type"], ("RuntimeDefault", "Unconfined", "Localhost")):
            local = profile["localhostProfile"]
            if profile["type"].text == "Localhost":
                if not local.text.strip():
                    profile.error("Localhost needs a localhostProfile")
                elif key == "seccompProfile":
                    complain(local, formats.relative_path(local.text))
            elif local:
                local.error("this is for the type Localhost only")


def _capabilities(context: Node) -> None:
    added, dropped = context.at("capabilities", "add"), context.at("capabilities", "drop")
    for each in (*added.items(), *dropped.items()):
        if each.text.upper().removeprefix("CAP_") not in CAPABILITIES:
            each.error(f"Linux has no capability {each.text!r}")
    plain = {each.text.upper().removeprefix("CAP_") for each in dropped.items()}
    for each in added.items():
        name = each.text.upper().removeprefix("CAP_")
        if name in plain - {"ALL"} or (name == "ALL" and "ALL" in plain):
            each.error(f"{each.text} is added and dropped")
        if name == "SYS_ADMIN" and context["allowPrivilegeEscalation"].flag is False:
            each.error("SYS_ADMIN can't be added where allowPrivilegeEscalation is false")


def _sysctls(pod: Pod) -> None:
    seen: set[str] = set()
    for each in pod.spec.at("securityContext", "sysctls").items():
        name = each["name"].text
        if not re.fullmatch(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?", name):
            each["name"].error(f"{name!r} is no name of a sysctl")
        if name in seen:
            each["name"].error(f"{name} stands twice")
        seen.add(name)
        plain = name.replace("/", ".")
        if pod.spec["hostNetwork"].flag and plain.startswith("net."):
            each["name"].error(f"{name} can't be set with hostNetwork")
        if pod.spec["hostIPC"].flag and plain.startswith(("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")):
            each["name"].error(f"{name} can't be set with hostIPC")
