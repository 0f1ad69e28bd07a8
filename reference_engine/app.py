"""The endpoint's paths: what each of them wants, and who answers it.

Whatever comes in gets an answer in OpenAI's form. What goes wrong in here is this program's mistake: it is answered
with 500 and logged, and nobody else's request feels it.

What this file may not do: touch sockets (`sidecar/http_server.py`), or wait: everything runs in the service's loop.
"""

import re
import secrets
import time
from collections.abc import Callable

import msgspec

from reference_engine import api
from reference_engine.answer import Piece
from reference_engine.api import Bad, Chat, Completion, Form
from reference_engine.scheduler import NotNow, TooLong
from reference_engine.service import Service, Work
from sidecar.http_server import Reply, Request
from sidecar.logs import Log

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class App:
    def __init__(self, service: Service, model: str, max_len: int, log: Log) -> None:
        self._service = service
        self._model = model
        self._max_len = max_len
        self._log = log
        self._created = int(time.time())
        self._paths: dict[str, tuple[str, Callable[[Request, Reply], None]]] = {
            "/v1/completions": ("POST", self._complete),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/health": ("GET", self._health),
        }

    def handle(self, request: Request, reply: Reply) -> None:
        try:
            self._find(request)(request, reply)
        except Bad as bad:
            allow = [(b"allow", bad.allow.encode())] if bad.allow else []
            reply.send(bad.status, api.error_body(bad.status, str(bad), bad.param), [*_JSON, *allow])
        except NotNow as error:
            reply.send(503, api.error_body(503, str(error)), [*_JSON, (b"retry-after", b"1")])
        except Exception as error:
            self._log.alarm("request_failed", path=request.path, error=f"{type(error).__name__}: {error}")
            reply.send(500, api.error_body(500, "this request met a mistake of the engine's; its log has more"), _JSON)

    def _find(self, request: Request) -> Callable[[Request, Reply], None]:
        known = self._paths.get(request.path)
        if known is None:
            raise Bad(f"there is no {request.path[:200]} here; there are {', '.join(self._paths)}", status=404)
        method, answer = known
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise Bad(f"{request.path} takes {method}, not {request.method[:20]}", status=405, allow=method)
        kind = request.header(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            raise Bad("the body has to be application/json", status=415)
        return answer

    # -- the paths -------------------------------------------------------------------------------------------------

    def _complete(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, Completion)
        self._check_model(wanted.model)
        self._generate(request, wanted, api.completion_prompt(wanted, self._max_len), reply)

    def _chat(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, Chat)
        self._check_model(wanted.model)
        self._generate(request, wanted, api.chat_prompt(wanted, wanted.messages, self._max_len), reply)

    def _models(self, request: Request, reply: Reply) -> None:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "gpu-failover",
            "root": self._model,
            "parent": None,
            "max_model_len": self._max_len,
        }
        reply.send(200, msgspec.json.encode({"object": "list", "data": [model]}), _JSON)

    def _tokenize(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, api.Tokenize)
        self._check_model(wanted.model)
        reply.send(200, api.tokenize(wanted, self._max_len), _JSON)

    def _detokenize(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, api.Detokenize)
        self._check_model(wanted.model)
        reply.send(200, api.detokenize(wanted), _JSON)

    def _health(self, request: Request, reply: Reply) -> None:
        if self._service.broken:
            raise Bad(f"the engine is broken: {self._service.broken}", status=503)
        reply.send(200, b"", _JSON)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _check_model(self, name: str | None) -> None:
        if name not in (None, "", self._model):
            raise Bad(f"the model {name[:200]!r} does not exist; there is {self._model!r}", status=404, param="model")

    def _generate(self, request: Request, wanted: Completion | Chat, prompt: list[int], reply: Reply) -> None:
        question = api.question(wanted, prompt, self._max_len)
        given = request.header(b"x-request-id")
        name = given.decode("ascii") if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        form = Form(wanted, prompt, self._model, name, int(time.time()))
        pieces: list[Piece] = []

        def stream(piece: Piece) -> None:
            for chunk in form.chunks(piece):
                reply.stream(chunk)
            if piece.finish_reason is not None:
                reply.end()

        def gather(piece: Piece) -> None:
            pieces.append(piece)
            if piece.finish_reason is not None:
                reply.send(200, form.whole(pieces), _JSON)

        def broke(why: str) -> None:
            reply.abort()

        work = Work(question, stream if wanted.stream else gather, broke)
        try:
            self._service.ask(work)
        except TooLong as error:
            raise Bad(str(error), param="max_tokens") from None
        reply.gone = lambda: self._service.forget(work)
        if wanted.stream:
            reply.open(200, _EVENTS)
