"""Metadata, labels and selectors: what every object has.

From the API's ValidateObjectMeta and ValidateLabelSelector.
"""

from . import formats
from .node import Node

CLUSTER_SCOPED = {
    "ClusterRole", "ClusterRoleBinding", "DeviceClass", "IngressClass", "Namespace", "Node", "PersistentVolume",
    "PriorityClass", "ResourceSlice", "RuntimeClass", "StorageClass",
}  # fmt: skip
_NAMES = {"Service": formats.dns_1035_label, "Namespace": formats.dns_label}
ANNOTATIONS_BYTES_MAX = 256 << 10


def check_metadata(root: Node) -> None:
    """An object's own metadata."""
    metadata, kind = root["metadata"], root["kind"].text
    if not metadata:
        root.error("metadata is missing")
        return
    if metadata["name"].text:
        complain(metadata["name"], _NAMES.get(kind, formats.dns_subdomain)(metadata["name"].text))
    elif metadata["generateName"].text:
        metadata["generateName"].warn("`kubectl apply` needs a name; generateName is for `kubectl create`")
    else:
        metadata.error("name is missing")
    if metadata["namespace"].text:
        complain(metadata["namespace"], formats.dns_label(metadata["namespace"].text))
        if kind in CLUSTER_SCOPED:
            metadata["namespace"].error(f"a {kind} is in no namespace")
    check_labels_and_annotations(metadata)
    for finalizer in metadata["finalizers"].items():
        complain(finalizer, formats.qualified_name(finalizer.text))


def check_labels_and_annotations(metadata: Node) -> None:
    check_labels(metadata["labels"])
    size = 0
    for key, value in metadata["annotations"].fields():
        complain(value, formats.qualified_name(key.lower()))
        size += len(key) + len(value.text)
    if size > ANNOTATIONS_BYTES_MAX:
        metadata["annotations"].error(f"annotations have {size} bytes; the most are {ANNOTATIONS_BYTES_MAX}")


def check_labels(labels: Node) -> None:
    for key, value in labels.fields():
        complain(value, formats.qualified_name(key))
        complain(value, formats.label_value(value.text))


def check_selector(selector: Node) -> None:
    """A LabelSelector."""
    check_labels(selector["matchLabels"])
    for each in selector["matchExpressions"].items():
        complain(each["key"], formats.qualified_name(each["key"].text))
        operator, values = each["operator"], each["values"]
        if operator.text in ("In", "NotIn"):
            if not values.value:
                each.error(f"values are missing: {operator.text} needs some")
        elif operator.text in ("Exists", "DoesNotExist"):
            if values.value:
                values.error(f"there may be none with {operator.text}")
        else:
            operator.error(f"{operator.text!r} is unknown; allowed: In, NotIn, Exists, DoesNotExist")
        for value in values.items():
            complain(value, formats.label_value(value.text))


def is_empty(selector: Node) -> bool:
    return not selector["matchLabels"].value and not selector["matchExpressions"].value


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


def one_of(node: Node, allowed: tuple[str, ...]) -> bool:
    """Reports a value that isn't among these; what is absent is fine."""
    if node and node.value not in allowed:
        node.error(f"{node.value!r} is unknown; allowed: {', '.join(allowed)}")
        return False
    return True


def not_negative(node: Node) -> None:
    if node.number is not None and node.number < 0:
        node.error(f"{node.number} must not be negative")
