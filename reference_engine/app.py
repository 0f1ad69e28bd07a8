"""The endpoint's paths: what each of them wants, and who answers it.

Whatever comes in gets an answer in OpenAI's form. What goes wrong in here is this program's mistake: it is answered
with 500 and logged, and nobody else's request feels it.

What this file may not do: touch sockets (`sidecar/http/http_server.py`), or wait: everything runs in the service's
loop.
"""

import re
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from reference_engine import api, asking, tokenizer
from reference_engine.answer import Piece, Question
from reference_engine.api import Bad, Chat, Completion
from reference_engine.forms import Form
from reference_engine.model import Floats
from reference_engine.sampling import Sampling
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
    def __init__(self, service: Service, model: str, max_len: int, log: Log, adapters: Sequence[str] = ()) -> None:
        self._service = service
        self._model = model
        self._adapters = adapters
        self._max_len = max_len
        self._log = log
        self._created = int(time.time())
        self.more_metrics: Callable[[], list[str]] = list
        """Lines of the metrics' page that somebody else knows."""
        self._paths: dict[str, tuple[str, Callable[[Request, Reply], None]]] = {
            "/v1/completions": ("POST", self._complete),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/v1/embeddings": ("POST", self._embed),
            "/v1/score": ("POST", self._score),
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
        self._generate(request, wanted, [asking.chat_prompt(wanted, wanted.messages, self._max_len)], reply)

    def _models(self, request: Request, reply: Reply) -> None:
        models = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "gpu-failover",
                "root": self._model,
                "parent": None if name == self._model else self._model,
                "max_model_len": self._max_len,
            }
            for name in (self._model, *self._adapters)
        ]
        reply.send(200, msgspec.json.encode({"object": "list", "data": models}), _JSON)

    def _tokenize(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, api.Tokenize)
        self._check_model(wanted.model)
        reply.send(200, asking.tokenize(wanted, self._max_len), _JSON)

    def _detokenize(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, api.Detokenize)
        self._check_model(wanted.model)
        reply.send(200, asking.detokenize(wanted), _JSON)

    def _health(self, request: Request, reply: Reply) -> None:
        if self._service.broken:
            raise Bad(f"the engine is broken: {self._service.broken}", status=503)
        reply.send(200, b"", _JSON)

    def _version(self, request: Request, reply: Reply) -> None:
        reply.send(200, b'{"version":"reference"}', _JSON)

    def _metrics(self, request: Request, reply: Reply) -> None:
        """Under vLLM's names, so that whoever reads vLLM's can read these."""
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
        if name not in (None, "", self._model, *self._adapters):
            raise Bad(
                f"the model {(name or '')[:200]!r} does not exist; there is {self._model!r}", status=404, param="model"
            )

    def _generate(self, request: Request, wanted: Completion | Chat, prompts: list[list[int]], reply: Reply) -> None:
        adapter = wanted.model if wanted.model in self._adapters and wanted.model else ""
        questions = asking.questions(wanted, prompts, self._max_len, adapter)
        if wanted.stream and wanted.prompt_logprobs is not None:
            raise Bad("prompt_logprobs can't be streamed", param="prompt_logprobs")
        given = request.header(b"x-request-id")
        name = given.decode("ascii") if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        form = Form(wanted, questions, wanted.model or self._model, name, int(time.time()))
        works: list[Work] = []

        def stream(index: int, piece: Piece) -> None:
            for chunk in form.chunks(index, piece):
                reply.stream(chunk)
            if form.complete:
                reply.end()

        def gather(index: int, piece: Piece) -> None:
            form.gather(index, piece)
            if form.complete:
                form.prompt_logprobs = [
                    work.prompt_logprobs for work in works[:: wanted.n or 1] if work.prompt_logprobs
                ]
                reply.send(200, form.whole(), _JSON)

        def broke(why: str) -> None:
            reply.abort()

        tell = stream if wanted.stream else gather
        for index, question in enumerate(questions):
            works.append(Work(question, partial(tell, index), broke))
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
        wanted = api.read(request.body, api.Embedding)
        self._check_model(wanted.model)
        texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input

        def told(vectors: list[Floats]) -> None:
            data = [
                {"object": "embedding", "index": index, "embedding": vector.tolist()}
                for index, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": sum(map(len, prompts)), "total_tokens": sum(map(len, prompts))}
            body = {"object": "list", "data": data, "model": self._model, "usage": usage}
            reply.send(200, msgspec.json.encode(body), _JSON)

        prompts = [self._text(text) for text in texts]
        self._look(prompts, told, reply)

    def _score(self, request: Request, reply: Reply) -> None:
        wanted = api.read(request.body, api.Score)
        self._check_model(wanted.model)
        others = [wanted.text_2] if isinstance(wanted.text_2, str) else wanted.text_2

        def told(vectors: list[Floats]) -> None:
            first, *rest = vectors
            data = [
                {"object": "score", "index": index, "score": float(first @ vector)} for index, vector in enumerate(rest)
            ]
            reply.send(200, msgspec.json.encode({"object": "list", "data": data, "model": self._model}), _JSON)

        self._look([self._text(text) for text in (wanted.text_1, *others)], told, reply)

    def _text(self, text: str) -> list[int]:
        asking.check_size(text, self._max_len)
        tokens = [tokenizer.BEGIN, *tokenizer.encode(text)]
        if len(tokens) >= self._max_len:
            raise Bad(f"this model's context is {self._max_len} tokens, and the text has {len(tokens)}", param="input")
        return tokens

    def _look(self, prompts: list[list[int]], told: Callable[[list[Floats]], None], reply: Reply) -> None:
        """What the model thinks behind each prompt, as a vector of length 1."""
        if not prompts:
            raise Bad("there is no text", param="input")
        vectors: dict[int, Floats] = {}

        def thought(index: int, logits: Floats) -> None:
            kept = logits[:_VECTOR].astype(np.float32)
            vectors[index] = kept / np.float32(np.linalg.norm(kept) or 1)

        def finished(piece: Piece) -> None:
            if len(vectors) == len(prompts):
                told([vectors[index] for index in range(len(prompts))])

        works = []
        for index, prompt in enumerate(prompts):
            work = Work(Question(tuple(prompt), 1, Sampling(temperature=0)), finished, lambda why: reply.abort())
            work.look = partial(thought, index)
            works.append(work)
        self._start(works, reply)
