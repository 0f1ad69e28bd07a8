"""What things are called: annotations, labels, a server pod, an instance. Pure.

llm-d's fast model actuation (FMA) calls them `dual-pods.llm-d.ai/...`, the specification before it
`dual-pod.llm-d.ai/...`. Both are read; the newer is written. docs/using/dual-pods.md has the table.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

PREFIX, OLD_PREFIX = "dual-pods.llm-d.ai/", "dual-pod.llm-d.ai/"
CONTAINER = "inference-server"
ADMIN_PORT = 8081
POD_UID = "POD_UID"
"""A requester's variable: its pod's uid."""
SERVER_PATCH, ADMIN_PORT_NAME, ROLE = "server-patch", "admin-port", "role"
CONFIG = "inference-server-config"
"""FMA's reference to a custom resource, which isn't served here."""
MODEL = PREFIX + "model"
"""Ours: more of the model's entry, as models.yaml has it."""
STATUS, ACCELERATORS = PREFIX + "status", PREFIX + "accelerators"
DUAL, INSTANCE, SLEEPING = PREFIX + "dual", PREFIX + "instance", PREFIX + "sleeping"
OLD_ADDRESS = OLD_PREFIX + "inference-server-ip"
SERVER = PREFIX + "server"
"""Ours, a label: this pod runs instances; its value says whether a pool (`pool`) or one (`single`)."""
BINDINGS = PREFIX + "bindings"
"""Ours, on a server pod: which instance is promised to which requester, by uid. It is the one place of that truth."""
ASLEEP_SINCE = PREFIX + "asleep-since"
"""Ours, on a server pod with one instance."""
GATE = PREFIX + "confirmed"
"""Ours, a scheduling gate: a pod with one instance runs nowhere before the leader has seen it, and takes that off."""
FINALIZER = PREFIX + "ended"
"""Ours, on a server pod: it stays until its containers have ended, even if it is deleted by force."""
_NUMBER = re.compile("0|[1-9][0-9]?")


def said(annotations: Mapping[str, str], name: str) -> str | None:
    """What an annotation says, by either prefix. One that is empty says nothing: to the admission policies it isn't
    there, so it must not hide what the other one says."""
    return annotations.get(PREFIX + name) or annotations.get(OLD_PREFIX + name) or None


def label(name: str) -> str:
    """A pod's name, as a label's value may be."""
    return name[:63].rstrip(".-")


def port(text: str) -> int:
    """0: it is none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return number if number < 65536 else 0


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def mask(accelerators: Iterable[str]) -> str:
    """As the specification says, the bits of the accelerators' numbers in hexadecimal; where they have no numbers,
    eight digits that follow from their names. A number is written in one way, and is one that a name has room for.
    """
    names = sorted(accelerators)
    numbers = all(_NUMBER.fullmatch(name) for name in names)
    return f"{sum(1 << int(name) for name in set(names)):x}" if numbers else digest(names)[:8]


def server_name(node: str, accelerators: Iterable[str], instance: str = "") -> str:
    """A pod's name has 253 characters at most, and a label that names it 63."""
    end = f"-{mask(accelerators)}-dual" if accelerators else "-dual"
    end += f"-{instance}" if instance else ""
    most = 63 - len(end)
    if len(node) > most:  # two long names may begin alike
        node = f"{node[: most - 7].rstrip('.-')}-{digest(node)[:6]}"
    return node + end


@lru_cache(maxsize=4096)
def instance_id(wish: str, node: str, accelerators: tuple[str, ...]) -> str:
    """The same wish on the same accelerators is the same instance. It is a label's value and a model's name."""
    return "i" + digest([wish, node, sorted(accelerators)])[:15]
