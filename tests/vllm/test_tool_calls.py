"""Tool calls of vLLM itself, through the door: one engine, with a parser."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gateway.door import GatewayProgram, ask
from tests.support.waiting import DEADLINE_S
from tests.vllm.conftest import _house
from tests.vllm.pair import NAME, PROMPT, Pair, _Unix
from tests.vllm.test_door import CHAT, SCHEMA

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
MESSAGES = [{"role": "user", "content": PROMPT}]


def test_a_tool_call_has_no_event_that_says_nothing(model: Path) -> None:
    """The door asks for token ids, and vLLM then has an empty event for each token that its parser keeps to itself. How
    many tokens come in one event depends on who is quicker.
    """
    tool = {"type": "function", "function": {"name": "say", "parameters": SCHEMA}}
    body = {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 200}
    body |= {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "say"}}, "stream": True}
    for house in _house():
        pair = Pair(house, model, 1)
        pair.kind = replace(pair.kind, arguments=(*pair.kind.arguments, *TOOLS))
        pair.servers()
        pair.shims = (pair.shim("a"),)
        door = GatewayProgram(house, "--failover-timeout-s", f"{DEADLINE_S:g}").serving()
        compare(door, door.state()["pairs"][0]["serves"]["url"], body)


def compare(door: GatewayProgram, url: str, body: dict[str, Any]) -> None:
    def itself(**more: bool) -> bytes:
        connection = _Unix(url.removeprefix("unix:"))
        connection.request("POST", CHAT, json.dumps(body | more), {"content-type": "application/json"})
        return connection.getresponse().read()

    with_ids = _tool_call(itself(return_token_ids=True))
    expected, found = _tool_call(itself()), _tool_call(ask(door.port, CHAT, body)[2])
    print(f"empty events: {with_ids[1]} with token ids, {expected[1]} without, {found[1]} through the door")
    assert found == expected and found[0] and found[1] == 0


def _tool_call(said: bytes) -> tuple[str, int]:
    """The call's arguments, and so many events that say nothing."""
    arguments, empty = "", 0
    for line in said.split(b"\n\n"):
        for choice in json.loads(line[6:])["choices"] if line.startswith(b"data: {") else ():
            empty += choice["delta"] == {} and choice["finish_reason"] is None
            for call in choice["delta"].get("tool_calls") or ():
                arguments += call["function"].get("arguments") or ""
    return arguments, empty
