"""What a vLLM engine asks itself before it is ready. That nothing is compiled afterwards: tests/vllm."""

import pytest

from engine_shim.vllm_engine.warm_up import LENGTHS, bodies


@pytest.mark.parametrize("longest", [3, 8, 64, 131072])
def test_the_longest_prompt_comes_first_and_all_of_them_fit(longest: int) -> None:
    asked = list(bodies("m", longest))
    lengths = [len(body["prompt"]) for body in asked]
    assert lengths[0] == max(lengths) == min(max(LENGTHS), longest - asked[0]["max_tokens"])
    assert all(length + body["max_tokens"] <= longest for length, body in zip(lengths, asked, strict=True))
    assert 1 in lengths


def test_what_is_compiled_on_first_use_is_asked_for_alone_and_beside_another() -> None:
    asked = list(bodies("m", 4096))
    for name in ("logprobs", "top_p", "top_k", "presence_penalty", "repetition_penalty"):
        assert {body.get("n", 1) > 1 for body in asked if name in body} == {False, True}, name
    assert any("prompt_logprobs" in body for body in asked) and any("structured_outputs" in body for body in asked)
