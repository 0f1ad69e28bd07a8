"""A request for a model that an OpenAI-compatible endpoint elsewhere serves: a ladder's last rung, as a rule. Pure.

Nothing is known there of tokens, so nothing is added to the request, and its answer is passed on as it comes: what
breaks once the client has some of it is an error.
"""

from urllib.parse import urlsplit

import msgspec

from gateway.rules.kinds import Api, Kind, Recovery
from pool.entries import Remote

_OURS = (b"host", b"authorization", b"x-api-key", b"cookie", b"forwarded", b"x-forwarded-for", b"x-real-ip")
"""Headers that are this door's and its clients' own affair."""


def address_of(remote: Remote) -> str:
    at = urlsplit(remote.url)
    return f"{at.scheme}://{at.netloc}"


def kind_there(kind: Kind, body: bytes, remote: Remote, key: str) -> Kind:
    """`body`: with the name that the model has there. `key`: this door's."""
    at = urlsplit(remote.url)
    headers = [header for header in kind.headers if header[0] not in _OURS]
    headers.append((b"host", at.netloc.encode()))
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    target = at.path.rstrip("/").encode() + kind.target.removeprefix(b"/v1")
    there = {"target": target, "headers": headers, "body": body, "api": Api.OTHER, "recovery": Recovery.ENDED}
    return msgspec.structs.replace(kind, afar=True, **there)
