"""What vLLM answers, path by path, asked of vLLM itself: each is relayed by the door, or has its reason here.

Its app is made without an engine. What a flag or a variable of vLLM's adds for its owner (`/sleep` and its kind) isn't
there, and isn't relayed either (`tests/gateway/test_at_the_door.py`).
"""

import pytest

from gateway.rules import kinds

NOT_RELAYED = {
    "/metrics": "the door's own page has the metrics of the engine that serves",
    "/openapi.json": "a page about one engine",
    "/docs": "a page about one engine",
    "/docs/oauth2-redirect": "a page about one engine",
    "/redoc": "a page about one engine",
    "/load": "how full one engine is; the door has its own metrics",
    "/kv_event_sources": "where one engine's events are, for a router that is beside it",
    "/ping": "SageMaker's probe of a container; the door has /live and /ready",
    "/invocations": "SageMaker's one path for everything: what it asks for has a path of its own",
    "/inference/v1/generate": "tokens in, tokens out, between the parts of an engine that is spread over several",
    "/inference/v1/abort_requests": "it ends the requests of others",
    "/scale_elastic_ep": "it changes the engine",
    "/is_scaling_elastic_ep": "it is asked about that",
    "/v1/realtime": "a WebSocket",
}
SENT_ONCE = {"/v1/responses/{response_id}/cancel"}


def routes() -> set[tuple[str, str]]:
    """Method and path of everything that some model has."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai import api_server
    from vllm.entrypoints.pooling.classify.api_router import router as classify
    from vllm.entrypoints.pooling.embed.api_router import router as embed
    from vllm.entrypoints.pooling.pooling.api_router import router as pooling
    from vllm.entrypoints.pooling.scoring.api_router import router as score
    from vllm.tasks import FRONTEND_TASKS, GENERATION_TASKS, POOLING_TASKS
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["model"])
    app = api_server.build_app(args, (*GENERATION_TASKS, *POOLING_TASKS, *FRONTEND_TASKS))
    for router in (classify, embed, pooling, score):  # which of them are there depends on the model
        app.include_router(router)
    return {
        (method, route.path)
        for route in app.routes
        if route.path and not route.path.startswith("/metrics")
        for method in getattr(route, "methods", None) or ("GET",)
    } | {("GET", "/metrics")}


def test_each_path_is_relayed_or_has_its_reason_and_what_only_asks_is_known_to() -> None:
    found = routes()
    paths = {path for _, path in found}
    assert {"/v1/chat/completions", "/classify", "/pooling", "/score", "/v2/rerank", "/v2/embed"} <= paths
    assert NOT_RELAYED.keys() <= paths, "a reason for what isn't there any more"
    for method, path in sorted(found):
        target = path.replace("{response_id}", "resp_1").encode()
        if path in NOT_RELAYED and path != "/v1/realtime":
            with pytest.raises(kinds.NotAllowed):
                kinds.allowed(method, target)
            continue
        kind = kinds.kind_of(method, target, [], b"{}", request_id="r", seed=1)
        assert kind.repeatable is (path not in SENT_ONCE), f"{method} {path}: it is sent once, or twice"
