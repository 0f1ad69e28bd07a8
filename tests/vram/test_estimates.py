"""What a model may need, before it was seen."""

import pytest

from vram.estimates import estimate

GB = 10**9


@pytest.mark.parametrize(
    ("name", "known", "expected", "why"),
    [
        ("any", {"seen": 7, "given": 8, "weights": {"a.gguf": 100}}, 7, "seen when it ran"),
        ("any", {"given": 8, "weights": {"a.gguf": 100}}, 8, "given"),
        ("any-7b", {"weights": {"a.gguf": 100, "b.GGUF": 10, "README.md": 999}}, 121, "its weights (.gguf) x 1.1"),
        ("any-7b", {"weights": {"a.safetensors": 100, "b.safetensors": 100}}, 260, "its weights (.safetensors) x 1.3"),
        ("Qwen/Qwen3-8B", {}, 19.2 * GB, "its name: 8 billion parameters of 16 bits"),
        ("llama-70b-awq", {"weights": {"README.md": 1}}, 52.5 * GB, "its name: 70 billion parameters of 5 bits"),
        ("mixtral-8x7b-Q4_K_M", {}, 42 * GB, "its name: 56 billion parameters of 5 bits"),
        ("Qwen2.5-0.5B-Instruct-FP8", {}, 0.6375 * GB, "its name: 0.5 billion parameters of 8.5 bits"),
    ],
)
def test_the_best_that_is_known_counts(name: str, known: dict[str, object], expected: float, why: str) -> None:
    found = estimate(name, **known)  # type: ignore[arg-type]
    assert found is not None and (abs(found.bytes - expected) <= 1, found.why) == (True, why)


def test_where_nothing_tells_nothing_is_said() -> None:
    assert estimate("gpt-4o") is None and estimate("bert-base", weights={"x.bin": 5}) is None
