"""What makes pods: Deployments, StatefulSets, DaemonSets, Jobs. From the API's apps and batch validation."""

from . import formats, objects
from .node import Node
from .objects import complain, not_negative, one_of
from .pods import TEMPLATES


def check(root: Node) -> None:
    kind, spec = root["kind"].text, root["spec"]
    if kind not in TEMPLATES:
        return
    for key in ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"):
        not_negative(spec[key])
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
        _selector(root)
    if kind == "Deployment":
        _strategy(spec["strategy"], ("RollingUpdate", "Recreate"))
        progress = spec["progressDeadlineSeconds"].number
        if (600 if progress is None else progress) <= (spec["minReadySeconds"].number or 0):
            spec["progressDeadlineSeconds"].error("it must be greater than minReadySeconds")
    elif kind in ("StatefulSet", "DaemonSet"):
        _strategy(spec["updateStrategy"], ("RollingUpdate", "OnDelete"))
        not_negative(spec.at("updateStrategy", "rollingUpdate", "partition"))
    if kind == "StatefulSet":
        one_of(spec["podManagementPolicy"], ("OrderedReady", "Parallel"))
        for key in ("whenDeleted", "whenScaled"):
            one_of(spec.at("persistentVolumeClaimRetentionPolicy", key), ("Retain", "Delete"))
    if kind == "Job":
        _job(spec)
    if kind == "CronJob":
        _job(spec.at("jobTemplate", "spec"))
        one_of(spec["concurrencyPolicy"], ("Allow", "Forbid", "Replace"))
        if len(spec["schedule"].text.split()) != 5 and not spec["schedule"].text.startswith("@"):
            spec["schedule"].error(f"{spec['schedule'].text!r} is no schedule of five fields such as '*/5 * * * *'")


def _selector(root: Node) -> None:
    spec, selector = root["spec"], root.at("spec", "selector")
    labels = spec.at("template", "metadata", "labels")
    if not selector:
        return  # the schema asks for it
    objects.check_selector(selector)
    if objects.is_empty(selector):
        selector.error("it may not be empty")
    elif not objects.matches(selector, labels.mapping()):
        labels.error(f"the selector doesn't match the template's labels, {labels.mapping()}")


def _strategy(strategy: Node, types: tuple[str, str]) -> None:
    rolling = strategy["rollingUpdate"]
    if not one_of(strategy["type"], types):
        return
    if strategy["type"].text == types[1] and rolling:
        rolling.error(f"there may be none with the type {types[1]}")
    for key in ("maxSurge", "maxUnavailable"):
        complain(rolling[key], formats.percent_or_count(rolling[key].value, at_most_100=key == "maxUnavailable"))
    if rolling["maxUnavailable"] and rolling["maxSurge"] and all(
        str(rolling[key].value).rstrip("%") == "0" for key in ("maxSurge", "maxUnavailable")
    ):  # fmt: skip
        rolling["maxUnavailable"].error("it may not be 0 when maxSurge is 0: nothing could ever be replaced")


def _job(spec: Node) -> None:
    for key in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        not_negative(spec[key])
    one_of(spec["completionMode"], ("NonIndexed", "Indexed"))
    if spec["completionMode"].text == "Indexed" and spec["completions"].number is None:
        spec["completionMode"].error("Indexed needs completions")
    if spec["selector"] and not spec["manualSelector"].flag:
        spec["selector"].error("the selector is made by the API server, unless manualSelector is true")
