"""`/failover/models` and `/failover/config`: what models there are, and what a person or a program may change of them.

To look needs no key, as with all of `/failover`. To change something needs one of `--admin-keys`; without that flag it
is for callers on this machine, and never for a page in a browser (which has an Origin). What this file may not do:
decide. The pool does what it is asked for (`Command`), or says why not.
"""

import asyncio
import ipaddress
import math
from typing import TypeVar, get_args
from urllib.parse import parse_qs, unquote

import msgspec

from gateway.rules import errors, kinds
from gateway.shell.keys import Keys
from gateway.shell.pair import Headers
from gateway.shell.ports import Ports
from gateway.shell.router import Router
from gateway.shell.view import Live
from pool.client import Command, CommandDone, Flags, Verb
from pool.entries import MOST_ENTRY_BYTES, Entry, State
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_requests import Refused
from sidecar.terminal.names import is_meant

MODELS, CONFIG = "/failover/models", "/failover/config"
SILENT_S = 2.0
TOKEN = b"x-dual-pods-token"
"""A controller's, of its lease. Forgotten with this process: what is obeyed then, the controller puts right."""
_VERBS: dict[str, Verb] = {verb: verb for verb in get_args(Verb) if verb not in ("launch", "remove", "flags")}


class ModelsApi:
    def __init__(self, loop: asyncio.AbstractEventLoop, router: Router, keys: Keys | None, ports: Ports) -> None:
        self.router, self.ports = router, ports
        self.live = Live(loop, self.document, MODELS)
        self._loop, self._keys = loop, keys
        self._token = 0
        self._asked = dict[object, float]()
        """What the pool hasn't answered yet, and since when."""

    def document(self) -> dict[str, object]:
        """All that the pool shows, and whether it still does. One that leaves a command unanswered may do it yet."""
        listing = self.router.listing
        shown = msgspec.to_builtins(listing) if listing is not None else {"models": [], "devices": [], "token": 0}
        is_silent = self._loop.time() > next(iter(self._asked.values()), math.inf) + SILENT_S
        pool = "away" if self.router.away_since is not None else "silent" if is_silent else "answers"
        return {**shown, "ports": self.ports.known, "pool": pool}

    # -- which callers are let in ----------------------------------------------------------------------------------

    def has(self, path: str) -> bool:
        return path in (CONFIG, MODELS) or path.startswith(MODELS + "/")

    def let_in(self, request: Request, has_body: bool) -> Refused | str | None:
        """What changes nothing is let in; what does, only of a caller that may."""
        if request.method in ("GET", "HEAD"):
            return Refused(413, f"{request.path} takes no body") if has_body else None
        if request.header(b"origin"):
            return Refused(403, "a page in a browser may not change this")
        name = self._key_of(request)
        if self._keys is not None:
            if not name:
                return Refused(401, "this needs a key of --admin-keys", [(b"www-authenticate", b"Bearer")])
        elif not _is_here(request.peer):
            return Refused(403, "from another machine this needs --admin-keys")
        return self._too_old(request.header(TOKEN, b"0")) or name

    def _key_of(self, request: Request) -> str:
        return self._keys.name_of(request.header(b"authorization")) if self._keys is not None else ""

    def _too_old(self, said: bytes) -> Refused | None:
        """The newest of several controllers is heard, by its token; a person without one always is."""
        token = int(said) if said.isdigit() and len(said) < 20 else -1
        if token < 0:
            return Refused(400, f"{TOKEN.decode()} is a number")
        if 0 < token < self._token:
            return Refused(409, f"a newer controller was heard: its token is {self._token}, and this one's is {token}")
        self._token = max(self._token, token)
        return None

    # -- requests --------------------------------------------------------------------------------------------------

    def take(self, request: Request, reply: Reply, headers: Headers, name: str, now: float, of: str) -> None:
        """Raises what `Router.take` does."""
        path, looks = request.path, request.method in ("GET", "HEAD")
        if not self.has(path):
            self.router.take(request, reply, headers, name, now, of)
        elif path == CONFIG:
            self._config(request, reply, looks)
        elif path == MODELS and looks:
            if parse_qs(request.target.partition(b"?")[2]).get(b"watch", [b"0"]) != [b"0"]:
                self.live.events(request, reply, counts=not self._key_of(request))
            else:
                self.live.state(request, reply)
        else:
            its, _, verb = path.removeprefix(MODELS).lstrip("/").partition("/")
            if verb == "ready" and of not in ("", unquote(its)):
                raise errors.Refusal(404, f"this port is {of}'s")
            self._of_model(request, reply, unquote(its), verb, looks)

    def _of_model(self, request: Request, reply: Reply, name: str, verb: str, looks: bool) -> None:
        if looks and verb in ("", "ready"):
            self._look(reply, name, ready=bool(verb))
        elif len(name) > 200:  # no model is called so, and the pool would take it for nonsense
            raise kinds.NotAllowed
        elif request.method == "POST" and not name:
            entry, fields = _read(request.body, Entry), Entry.__struct_fields__
            for field in _read(request.body, dict[str, msgspec.Raw]).keys() - {*fields, "id"}:
                raise errors.Refusal(400, f"there is no field {field[:64]}{is_meant(field, fields)}")
            if len(entry.name) > 64 or len(request.body) > MOST_ENTRY_BYTES:
                raise errors.Refusal(
                    400, f"a name has 1 to 64 characters, and an entry at most {MOST_ENTRY_BYTES} bytes"
                )
            self._command(reply, Command(number=0, verb="launch", name=entry.name or None, entry=entry))
        elif request.method == "DELETE" and name and not verb:
            self._command(reply, Command(number=0, verb="remove", name=name))
        elif request.method == "POST" and verb in _VERBS:
            self._command(reply, Command(number=0, verb=_VERBS[verb], name=name))
        else:
            known = verb in ("", "ready", *_VERBS)
            raise kinds.WrongMethod if known else kinds.NotAllowed

    def _look(self, reply: Reply, name: str, *, ready: bool) -> None:
        listing = self.router.listing
        found = next((model for model in listing.models if model.name == name), None) if listing is not None else None
        if found is None:
            raise errors.Refusal(404, f"there is no model {name[:200]!r}")
        status = 200 if not ready or found.state is State.AWAKE else 503
        reply.send(status, msgspec.json.encode(found) + b"\n", errors.JSON)

    def _config(self, request: Request, reply: Reply, looks: bool) -> None:
        if looks:
            reply.send(200, msgspec.json.encode(self.router.catalogue.flags) + b"\n", errors.JSON)
        elif request.method == "PUT":
            flags = Flags(allow_cloud_fallback=_read(request.body, _Flags).allow_cloud_fallback)
            self._command(reply, Command(number=0, verb="flags", flags=flags), **msgspec.structs.asdict(flags))
        else:
            raise kinds.WrongMethod

    def _command(self, reply: Reply, command: Command, **done: object) -> None:
        """`done`: what is said beside the pool's sentence, once it was done."""
        asked = object()
        self._asked[asked] = self._loop.time()

        def answer(said: CommandDone) -> None:
            del self._asked[asked]
            if said.ok:
                reply.send(said.status, msgspec.json.encode({**done, "detail": said.detail}) + b"\n", errors.JSON)
            else:
                reply.send(*errors.Refusal(said.status, said.detail).answer())

        self.router.client.command(command, lambda said: self._loop.call_soon_threadsafe(answer, said))


_T = TypeVar("_T")


def _read(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.Refusal(400, f"this can't be taken: {error}") from None


class _Flags(msgspec.Struct, forbid_unknown_fields=True):
    allow_cloud_fallback: bool


def _is_here(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False
