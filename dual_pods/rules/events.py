"""What happens to the controller, and what it does. Pure. A fact is an event as well: it was seen."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dual_pods.rules.facts import Node, Pod, Requester, Server, Told
from dual_pods.rules.standing import Target

Key = tuple[str, ...]
"""By which the outcome of an effect is told: what it is, and what about."""


class Gone(NamedTuple):
    """A node or a pod, by its uid."""

    uid: str
    stays: bool = False
    """The pod is there, and is neither a requester nor a server pod."""


class Unread(NamedTuple):
    """A node, or a server pod there, couldn't be read: a fault of ours."""

    uid: str
    node: str
    what: str
    fault: Exception


class Listed(NamedTuple):
    """Everything that was there has been told."""


class Tells(NamedTuple):
    """A server pod says what it runs. None: it can't be reached, or has ended its answer."""

    uid: str
    told: Told | None


class Measured(NamedTuple):
    """Bytes in use on accelerators of a node, at a time."""

    node: str
    used: Mapping[str, int]
    at: float
    why: str = ""
    """Why there are none."""


class Look(NamedTuple):
    """The time has come that a plan named."""


class Query(NamedTuple):
    """Asks a requester which accelerators it has."""

    requester: Requester


class Create(NamedTuple):
    """Makes a server pod; in the controller's own namespace where none is named."""

    node: str
    namespace: str
    body: Mapping[str, Any]


class Order(NamedTuple):
    """About an instance of a server pod: `launch`, `wake`, `sleep` or `delete`. About the pod: `delete-pod`;
    `admit`, which takes its gate off; `release`, which takes its finalizer off.
    """

    what: str
    server: Server
    instance: str = ""
    entry: Mapping[str, Any] = {}
    """What is launched."""


class Mark(NamedTuple):
    """Changes labels and annotations, if the pod is still as it was seen. None removes."""

    pod: Pod
    labels: Mapping[str, str | None]
    annotations: Mapping[str, str | None]


class Relay(NamedTuple):
    """Tells a requester where its instance is, that it isn't awake (`stays`), or by None that it has none any more."""

    requester: Requester
    target: Target | None


class Say(NamedTuple):
    """An Event of Kubernetes. The same words about a pod are said once."""

    pod: Pod
    reason: str
    sentence: str
    warning: bool = False
    since: float | None = None
    """It is said once of what goes on since then, whatever the words are by now."""
    again: bool = False
    """Each time that it happens."""


class Fault(NamedTuple):
    """One of ours, while a plan was made for a node, or in it for a requester."""

    about: str
    """The node, or the requester's uid."""
    what: str
    fault: Exception


Effect = Query | Create | Order | Mark | Relay | Say | Fault


class Done(NamedTuple):
    """What became of an effect."""

    effect: Effect
    error: str = ""
    """A sentence; empty: it was taken."""
    accelerators: tuple[str, ...] = ()


Event = Node | Requester | Server | Gone | Unread | Listed | Tells | Measured | Done | Look


def key(effect: Effect) -> Key:
    match effect:
        case Query(requester):
            return "query", requester.uid
        case Create(node, _, body):
            return "create", node, body["metadata"]["name"]
        case Order(what, server, instance):
            return what, server.uid, instance
        case Mark(pod):
            return "mark", pod.uid
        case Relay(requester):
            return "relay", requester.uid
        case Fault(about):
            return "plan", about
        case Say(pod, reason, sentence, since=since):
            return "say", pod.uid, reason, sentence if since is None else ""
