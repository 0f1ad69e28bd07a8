"""A request, once it is known what it asks for, and its answer."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.api_server import kinds
from tests.api_server.kinds import Resource
from tests.api_server.store import Key

Object = dict[str, Any]


class User(NamedTuple):
    name: str
    namespace: str = ""
    account: str = ""


NOBODY = User("system:anonymous")


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    user: User = NOBODY
    resource: Resource = kinds.PODS
    namespace: str = ""
    name: str = ""
    sub: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return Key(self.resource.full_name, self.namespace, self.name)

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or self.headers.get("user-agent", "unknown").partition("/")[0]

    @property
    def dry(self) -> bool:
        return "dryRun" in self.query


@dataclass
class Answer:
    code: int
    body: Object | str
    headers: dict[str, str] = field(default_factory=dict)


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
