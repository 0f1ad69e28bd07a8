"""The endpoint's paths: what each of them wants, and who answers it.

Whatever comes in gets an answer in OpenAI's form. What goes wrong in here is this program's mistake: it is answered
with 500 and logged, and no other request feels it.

What this file may not do: touch sockets (`sidecar/http/http_server.py`), or wait: everything runs in the service's
loop.
"""

import re
import secrets
import time
import zlib
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from reference_engine import api, asking
from reference_engine.answer import Piece
from reference_engine.api import Bad, Chat, Completion
from reference_engine.forms import Form
from reference_engine.scheduler import NotNow, TooLong
from reference_engine.service import Service, Work
from sidecar.http.http_exchange import Reply, Request
from sidecar.terminal.logs import Log

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_VECTOR = 256
"""Numbers of an embedding."""
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class App:
    def __init__(self, service: Service, model: str, max_len: int, log: Log) -> None:
        self._service = service
        self._model = model
        self._max_len = max_len
        self._log = log
        self._created = int(time.time())
        self.more_metrics: Callable[[], list[str]] = list
        """Lines of the metrics' page that another part knows."""
        self._paths: dict[str, tuple[str, Callable[[Request, Reply], None]]] = {
            "/v1/completions": ("POST", self._complete),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/v1/embeddings": ("POST", self._embed),
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
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
            said = kind.decode(errors="replace")[:100]
            raise Bad(f"the body has to be application/json, and the header content-type says {said}", status=415)
        return answer

    # -- the paths -------------------------------------------------------------------------------------------------

    def _complete(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, Completion)
        self._check_model(wanted.model)
        self._generate(request, wanted, asking.completion_prompts(wanted, self._max_len), reply)

    def _chat(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, Chat)
        self._check_model(wanted.model)
        self._generate(request, wanted, [asking.chat_prompt(wanted, self._max_len)], reply)

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

    def _health(self, request: Request, reply: Reply) -> None:
        if self._service.broken:
            raise Bad(f"the engine is broken: {self._service.broken}", status=503)
        reply.send(200, b"", _JSON)

    def _version(self, request: Request, reply: Reply) -> None:
        reply.send(200, b'{"version":"reference"}', _JSON)

    def _metrics(self, request: Request, reply: Reply) -> None:
        """Under vLLM's names, so that a reader of vLLM's can read these."""
        service = self._service
        lines = [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{model_name="{self._model}"}} {service.running}',
            "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.",
            "# TYPE vllm:num_requests_waiting gauge",
            f'vllm:num_requests_waiting{{model_name="{self._model}"}} {service.queued - service.running}',
            "# HELP reference_steps_total Steps that were made.",
            "# TYPE reference_steps_total counter",
            f"reference_steps_total {service.steps}",
            *self.more_metrics(),
        ]
        page = "".join(line + "\n" for line in lines).encode()
        reply.send(200, page, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")])

    # -- answers ---------------------------------------------------------------------------------------------------

    def _check_model(self, name: str | None) -> None:
        if name not in (None, "", self._model):
            raise Bad(
                f"the model {(name or '')[:200]!r} does not exist; there is {self._model!r}", status=404, param="model"
            )

    def _generate(self, request: Request, wanted: Completion | Chat, prompts: list[list[int]], reply: Reply) -> None:
        questions = asking.questions(wanted, prompts, self._max_len)
        given = request.header(b"x-request-id")
        name = given.decode("ascii") if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        form = Form(wanted, questions, self._model, name, int(time.time()))

        def stream(index: int, piece: Piece) -> None:
            for chunk in form.chunks(index, piece):
                reply.stream(chunk)
            if form.complete:
                reply.end()

        def gather(index: int, piece: Piece) -> None:
            form.gather(index, piece)
            if form.complete:
                reply.send(200, form.whole(), _JSON)

        def broke(why: str) -> None:
            reply.abort()

        tell = stream if wanted.stream else gather
        works = [Work(question, partial(tell, index), broke) for index, question in enumerate(questions)]
        self._start(works, reply)
        if wanted.stream:
            reply.open(200, _EVENTS)

    def _start(self, works: list[Work], reply: Reply) -> None:
        """All of them, or none."""
        begun: list[Work] = []
        try:
            for work in works:
                self._service.ask(work)
                begun.append(work)
        except (TooLong, NotNow) as error:
            for work in begun:
                self._service.forget(work)
            if isinstance(error, NotNow):
                raise
            raise Bad(str(error), param="max_tokens") from None

        def gone() -> None:
            for work in works:
                self._service.forget(work)

        reply.gone = gone

    def _embed(self, request: Request, reply: Reply) -> None:
        """Numbers drawn from a text: alike for the same one, and without a meaning."""
        wanted = api.read(request.body, api.Embedding)
        self._check_model(wanted.model)
        texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input
        data = []
        for index, text in enumerate(texts):
            asking.check_size(text, self._max_len)
            drawn = np.random.PCG64(zlib.crc32(text.encode("utf-8", "replace"))).random_raw(_VECTOR) / 2.0**63 - 1
            vector = (drawn / np.linalg.norm(drawn)).tolist()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        reply.send(200, msgspec.json.encode({"object": "list", "data": data, "model": self._model}), _JSON)
