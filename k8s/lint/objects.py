"""Names and selectors: what every object has. And what most rules say: a word that isn't among those that there are."""

from . import formats
from .node import Node

CLUSTER_SCOPED = {
    "ClusterRole", "ClusterRoleBinding", "DeviceClass", "IngressClass", "Namespace", "Node", "PersistentVolume",
    "PriorityClass", "ResourceSlice", "RuntimeClass", "StorageClass",
}  # fmt: skip


def check_metadata(root: Node) -> None:
    """An object's own metadata."""
    metadata = root["metadata"]
    if metadata["name"].text:
        complain(metadata["name"], formats.dns_subdomain(metadata["name"].text))
    elif metadata["generateName"].text:
        metadata["generateName"].warn("`kubectl apply` needs a name; generateName is for `kubectl create`")
    else:
        (metadata if metadata else root).error("metadata.name is missing")


def matches(selector: Node, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector selects something with these labels; an empty one selects everything."""
    if any(labels.get(key) != value for key, value in selector["matchLabels"].mapping().items()):
        return False
    for each in selector["matchExpressions"].items():
        key, values = each["key"].text, each["values"].texts()
        fits = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not fits.get(each["operator"].text, True):
            return False
    return True


def complain(node: Node, why: str) -> None:
    if why:
        node.error(why)


def one_of(node: Node, *allowed: str) -> bool:
    """Reports a value that isn't among these; what is absent is fine."""
    if node and node.value not in allowed:
        node.error(f"{node.value!r} is unknown; allowed: {', '.join(allowed)}")
        return False
    return True
