"""API keys, from a file: one a line, `#` begins a comment. Read again on SIGHUP.

They are compared by their digests, all of them and each in constant time: how long it takes tells nothing about how
much of a key was right.
"""

import hashlib
import hmac
from pathlib import Path


class BadKeys(Exception):
    """The file can't be used; the text says why."""


def is_preflight(method: str, origin: bytes) -> bool:
    """A browser asks whether a page may ask. It sends no key with that, and gets nothing of a model."""
    return method == "OPTIONS" and bool(origin)


class Keys:
    def __init__(self, path: Path) -> None:
        """Raises BadKeys."""
        self.path = path
        self._digests: list[bytes] = []
        self.reload()

    def reload(self) -> int:
        """How many there are now. Raises BadKeys, and then those from before stay."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise BadKeys(f"the file with API keys, {self.path}, can't be read: {why}") from None
        keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        if not keys:
            raise BadKeys(f"there is no key in {self.path}: one a line, or leave --api-keys out")
        self._digests = [_digest(key.encode()) for key in keys]
        return len(keys)

    def name_of(self, authorization: bytes) -> str:
        """What a key is called in here, of the value of that header; "" if it is none."""
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return f"key {given.hex()}" if found and scheme.lower() == b"bearer" else ""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
