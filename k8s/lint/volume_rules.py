"""Volumes and where they are mounted: from the API's ValidateVolumes and ValidateVolumeMounts.

Beyond the API: a medium that kubelet doesn't know, memory without a limit, volumes that nobody mounts.
"""

import re

from . import formats
from .formats import NoQuantity, quantity
from .node import Node
from .objects import complain, one_of
from .pods import Container, Pod

SOURCES = {
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI",
    "emptyDir", "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath",
    "image", "iscsi", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected",
    "quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume",
}  # fmt: skip
_GONE = {"flocker", "gitRepo", "glusterfs", "photonPersistentDisk", "quobyte", "scaleIO", "storageos"}
_HOST_TYPES = ("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
PROJECTED = ("secret", "downwardAPI", "configMap", "serviceAccountToken", "clusterTrustBundle", "podCertificate")


def check(pod: Pod) -> None:
    names: set[str] = set()
    for volume in pod.spec["volumes"].items():
        name = volume["name"]
        complain(name, formats.dns_label(name.text))
        if name.text in names:
            name.error(f"{name.text} is declared twice")
        names.add(name.text)
        _source(volume)
    used = set()
    for container in pod.containers:
        used |= _mounts(pod, container, names)
    for volume in pod.spec["volumes"].items():
        if volume["name"].text not in used:
            volume.warn(f"no container mounts {volume['name'].text}")


def _source(volume: Node) -> None:
    sources = [key for key, _ in volume.fields() if key in SOURCES]
    if not sources:
        volume.warn("no source is given: the API server makes it an emptyDir")
    if len(sources) > 1:
        volume[sources[1]].error(f"a volume has one source; here are {' and '.join(sources)}")
    for source in sources:
        if source in _GONE:
            volume[source].error(f"{source} was taken out of Kubernetes")
    _empty_dir(volume["emptyDir"])
    _keyed(volume["configMap"], "name")
    _keyed(volume["secret"], "secretName")
    _mode(volume.at("downwardAPI", "defaultMode"))
    for item in volume.at("downwardAPI", "items").items():
        _downward(item)
    host = volume["hostPath"]
    if host:
        if not host["path"].text:
            host.error("path is missing")
        complain(host["path"], formats.no_backsteps(host["path"].text))
        one_of(host["type"], _HOST_TYPES)
    claim = volume["persistentVolumeClaim"]
    if claim:
        complain(claim["claimName"], formats.dns_subdomain(claim["claimName"].text))
    nfs = volume["nfs"]
    if nfs and not nfs["path"].text.startswith("/"):
        nfs["path"].error("it must be an absolute path")
    if volume["image"]:
        one_of(volume.at("image", "pullPolicy"), ("Always", "IfNotPresent", "Never"))
        complain(volume.at("image", "reference"), formats.image(volume.at("image", "reference").text))
    _projected(volume["projected"])


def _empty_dir(source: Node) -> None:
    medium, limit = source["medium"], source["sizeLimit"]
    if medium.text and not re.fullmatch(r"Memory|HugePages(-[0-9]+(Ki|Mi|Gi))?", medium.text):
        medium.error(f"{medium.text!r} is unknown to kubelet; allowed: Memory, HugePages, HugePages-2Mi, or none: disk")
    if limit:
        try:
            if quantity(limit.value) < 0:
                limit.error(f"{limit.value} must not be negative")
        except NoQuantity as error:
            limit.error(str(error))
    elif medium.text == "Memory":
        source.warn("memory without a sizeLimit: whoever fills it fills the node (or the container's limit)")


def _keyed(source: Node, name: str) -> None:
    """A volume of a config map or of a secret."""
    if not source:
        return
    if not source[name].text:
        source.error(f"{name} is missing")
    else:
        complain(source[name], formats.dns_subdomain(source[name].text))
    _mode(source["defaultMode"])
    _items(source["items"])


def _items(items: Node) -> None:
    paths: set[str] = set()
    for item in items.items():
        complain(item["key"], formats.config_key(item["key"].text))
        path = item["path"]
        if not path.text:
            item.error("path is missing")
        complain(path, formats.relative_path(path.text))
        if path.text in paths:
            path.error(f"{path.text} stands twice")
        paths.add(path.text)
        _mode(item["mode"])


def _downward(item: Node) -> None:
    if not item["path"].text:
        item.error("path is missing")
    complain(item["path"], formats.relative_path(item["path"].text))
    _mode(item["mode"])
    if bool(item["fieldRef"]) == bool(item["resourceFieldRef"]):
        item.error("exactly one of fieldRef and resourceFieldRef has to be given")
    path = item.at("fieldRef", "fieldPath")
    known = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
    if (
        path.text
        and path.text not in known
        and not re.fullmatch(r"metadata\.(labels|annotations)\['[^']+'\]", path.text)
    ):
        path.error(f"{path.text!r} can't be had as a file; there are {', '.join(known)}")
    resource = item["resourceFieldRef"]
    if resource and not resource["containerName"].text:
        resource.error("containerName is missing")


def _projected(source: Node) -> None:
    _mode(source["defaultMode"])
    for each in source["sources"].items():
        given = [key for key, _ in each.fields()]
        if len(given) != 1:
            each.error(f"a source is one of {', '.join(PROJECTED)}")
        for key in ("configMap", "secret"):
            if each[key] and not each[key]["name"].text:
                each[key].error("name is missing")
            _items(each[key]["items"])
        for item in each.at("downwardAPI", "items").items():
            _downward(item)
        token = each["serviceAccountToken"]
        seconds = token["expirationSeconds"].number
        if seconds is not None and not 600 <= seconds <= 1 << 32:
            token["expirationSeconds"].error("a token lives for 10 minutes at least")
        if token and not token["path"].text:
            token.error("path is missing")


def _mode(mode: Node) -> None:
    if mode.number is not None and not 0 <= mode.number <= 0o777:
        mode.error(f"{mode.number} is no mode between 0 and 0777 (511)")


def _mounts(pod: Pod, container: Container, volumes: set[str]) -> set[str]:
    used: set[str] = set()
    paths: set[str] = set()
    for mount in container.mounts():
        name, path = mount["name"], mount["mountPath"]
        used.add(name.text)
        if name.text not in volumes:
            name.error(f"the pod has no volume {name.text!r}; it has: {', '.join(sorted(volumes)) or 'none'}")
        _path(path)
        plain = path.text.rstrip("/") or path.text
        if plain in paths:
            path.error(f"{path.text} is mounted twice in this container")
        paths.add(plain)
        if mount["subPath"].text and mount["subPathExpr"].text:
            mount["subPathExpr"].error("only one of subPath and subPathExpr may be given")
        for key in ("subPath", "subPathExpr"):
            if mount[key].text:
                complain(mount[key], formats.relative_path(mount[key].text))
        one_of(mount["mountPropagation"], ("None", "HostToContainer", "Bidirectional"))
        privileged = container.node.at("securityContext", "privileged").flag
        if mount["mountPropagation"].text == "Bidirectional" and not privileged:
            mount["mountPropagation"].error("Bidirectional is for privileged containers only")
        one_of(mount["recursiveReadOnly"], ("Disabled", "IfPossible", "Enabled"))
        if mount["recursiveReadOnly"].text in ("IfPossible", "Enabled") and not mount["readOnly"].flag:
            mount["recursiveReadOnly"].error("this needs readOnly: true")
        source = pod.volumes.get(name.text)
        read_only = source is not None and source.at("persistentVolumeClaim", "readOnly").flag
        if read_only and mount["readOnly"].flag is False:
            mount["readOnly"].error(f"the volume {name.text} is read-only for the whole pod")
        for other in container.mounts():
            above = other["mountPath"].text.rstrip("/")
            if other["readOnly"].flag and path.text.startswith(above + "/"):
                path.warn(f"it lies in {above}, which is read-only: the directory has to be there already")
    for device in container.node["volumeDevices"].items():
        used.add(device["name"].text)
        source = pod.volumes.get(device["name"].text)
        if source is None:
            device["name"].error(f"the pod has no volume {device['name'].text!r}")
        elif not source["persistentVolumeClaim"] and not source["ephemeral"]:
            device["name"].error("a block device has to be a persistentVolumeClaim or ephemeral")
        if device["devicePath"].text.rstrip("/") in paths:
            device["devicePath"].error("something is mounted there")
        complain(device["devicePath"], formats.no_backsteps(device["devicePath"].text))
    return used


def _path(path: Node) -> None:
    if not path.text:
        path.error("mountPath is missing")
    elif ":" in path.text:
        path.error(f"{path.text!r} must not contain ':'")
    elif not path.text.startswith("/"):
        path.warn(f"{path.text!r} is no absolute path: kubelet takes it for /{path.text}")
    elif path.text == "/":
        path.error("nothing can be mounted over the container's root")
    else:
        complain(path, formats.no_backsteps(path.text))
