"""The transformer's promise: a token's logits are the same to the last bit, however they are computed."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine import tokenizer
from reference_engine.model import BadShape, Model, Shape, share
from reference_engine.places import Floats, Span
from reference_engine.sampling import Sampler, Sampling
from tests.reference_engine.serving import every_block, forward, model, weights

SHAPE = Shape(layers=3, width=64, heads=4, hidden=100, max_len=256)
WEIGHTS = weights(SHAPE)
LARGE = Shape(layers=3, width=64, heads=4, hidden=100, max_len=1024)
FIRST_WEIGHTS = [-3, -2, 0, 7, 7, 6, -3, 3, -5, 5, 2, 0]
PROMPT = [tokenizer.BEGIN, *tokenizer.encode("Who is there, in the middle of the night?")]


def generated(of: Model, prompt: list[int], count: int, blocks: tuple[int, ...] | None = None) -> list[int]:
    blocks = blocks or every_block(SHAPE)
    logits = forward(of, prompt, 0, blocks)
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(int(logits.argmax()))
        logits = forward(of, tokens[-1:], len(prompt) + len(tokens) - 1, blocks)
    return tokens


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    again, other = weights(SHAPE), weights(Shape(layers=3, width=64, heads=4, hidden=100, max_len=256, seed=1))
    assert all(np.array_equal(WEIGHTS[name], again[name]) for name in WEIGHTS)
    assert not np.array_equal(WEIGHTS["embedding"], other["embedding"])


def test_weights_are_those_that_they_always_were() -> None:
    """Two engines of different numpy versions share one copy of them."""
    first = WEIGHTS["layers.0.mlp.down"].reshape(-1)[:12]
    assert first.tolist() == FIRST_WEIGHTS


@pytest.mark.slow
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 119), max_size=6), seed=st.integers(0, 1000))
def test_logits_do_not_depend_on_how_many_positions_are_computed_at_a_time(cuts: list[int], seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, tokenizer.VOCABULARY, 120).tolist()
    at_once = forward(model(SHAPE, WEIGHTS), tokens, 0, every_block(SHAPE))
    in_pieces = model(SHAPE, WEIGHTS)
    ends = sorted({*cuts, len(tokens)})
    for start, end in zip([0, *ends], ends, strict=False):
        logits = forward(in_pieces, tokens[start:end], start, every_block(SHAPE, first=5))
    assert logits.tobytes() == at_once.tobytes()


@pytest.mark.parametrize("broken_at", [1, 59])
def test_an_answer_goes_on_from_its_tokens_exactly(broken_at: int) -> None:
    whole = generated(model(SHAPE, WEIGHTS), PROMPT, 60)
    assert generated(model(SHAPE, WEIGHTS), PROMPT + whole[:broken_at], 60 - broken_at) == whole[broken_at:]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_number_of_processes_computes_the_same(ranks: int) -> None:
    """Three processes share four heads and a hundred of the MLP unevenly."""
    alone = forward(model(SHAPE, WEIGHTS), PROMPT, 0, every_block(SHAPE))
    shared = forward(model(SHAPE, WEIGHTS, ranks), PROMPT, 0, every_block(SHAPE))
    assert alone.tobytes() == shared.tobytes()


@pytest.mark.slow
@settings(max_examples=25)
@given(lengths=st.lists(st.integers(1, 100), min_size=2, max_size=6), whole=st.integers(0, 5))
def test_logits_do_not_depend_on_who_is_computed_beside_them(lengths: list[int], whole: int) -> None:
    """Some with one token to go, one with all of its prompt."""
    together = model(LARGE, WEIGHTS)
    asked, alone = [], []
    for place, length in enumerate(lengths):
        tokens = np.random.default_rng(place).integers(0, tokenizer.VOCABULARY, length).tolist()
        blocks = every_block(LARGE)[8 * place : 8 * place + 8]
        done = 0 if place == whole else length - 1
        if done:
            forward(together, tokens[:done], 0, blocks)
        asked.append((tokens[done:], Span(done, length - done, blocks)))
        alone.append(forward(model(SHAPE, WEIGHTS), tokens, 0, every_block(SHAPE)))
    assert together.forward(asked).tobytes() == np.stack(alone).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["changed", "lost", "twice"])
def test_an_answer_depends_on_every_token_before_it(what: str) -> None:
    """Else a continuation that lost a token, or has one twice, would not show."""
    answer = generated(model(SHAPE, WEIGHTS), PROMPT, 40)
    context = PROMPT + answer[:20]
    same = 0
    for at in range(len(context) - 1):
        wrong = {
            "changed": [*context[:at], (context[at] + 1) % 256, *context[at + 1 :]],
            "lost": context[:at] + context[at + 1 :],
            "twice": [*context[:at], context[at], *context[at:]],
        }[what]
        same += generated(model(SHAPE, WEIGHTS), wrong, 20) == answer[20:]
    assert same == 0


def test_an_answer_is_text_that_a_person_can_look_at() -> None:
    text = tokenizer.decode(generated(model(SHAPE, WEIGHTS), PROMPT, 200))
    assert "\ufffd" not in text.rstrip("\ufffd")
    assert " " in text
    assert not text.isascii()
    assert len(set(text)) > 20


def test_bad_numbers_make_no_model() -> None:
    for wrong in (
        {"layers": 0},
        {"width": 65},
        {"width": 20000, "heads": 100},
        {"hidden": 20000},
        {"max_len": 1 << 21},
    ):
        with pytest.raises(BadShape):
            Shape(**wrong)


@given(things=st.integers(1, 50), ranks=st.integers(1, 50))
def test_shares_are_all_there_is_and_differ_by_one(things: int, ranks: int) -> None:
    shares = [share(things, rank, ranks) for rank in range(ranks)]
    assert [thing for some in shares for thing in some] == list(range(things))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# -- sampling ------------------------------------------------------------------------------------------------------


def drawn(logits: Floats, sampling: Sampling, count: int = 2000) -> Mapping[int, int]:
    sampler = Sampler(sampling)
    tokens = [sampler.choose(logits) for _ in range(count)]
    return {token: tokens.count(token) for token in set(tokens)}


LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def test_a_seed_gives_the_same_draws_and_no_seed_others() -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    first, again = Sampler(sampling), Sampler(sampling)
    assert [first.choose(LOGITS) for _ in range(50)] == [again.choose(LOGITS) for _ in range(50)]
    assert len({tuple(Sampler(Sampling()).choose(LOGITS) for _ in range(50)) for _ in range(3)}) == 3


def test_draws_follow_the_shares() -> None:
    counts = drawn(LOGITS, Sampling(seed=1))
    assert [round(counts[token] / 2000, 1) for token in range(4)] == [0.5, 0.3, 0.1, 0.1] or abs(counts[0] - 1000) < 100


def test_top_p_and_top_k_leave_the_likeliest() -> None:
    assert set(drawn(LOGITS, Sampling(top_p=0.6, seed=1))) == {0, 1}
    assert set(drawn(LOGITS, Sampling(top_p=1e-9, seed=1))) == {0}
    assert set(drawn(LOGITS, Sampling(top_k=3, seed=1))) == {0, 1, 2}
    assert set(drawn(LOGITS, Sampling(temperature=0.01, seed=1))) == {0}


def test_of_equals_the_first_and_never_what_is_banned() -> None:
    equal = np.zeros(4, np.float32)
    assert Sampler(Sampling(temperature=0)).choose(equal) == 0
    assert Sampler(Sampling(temperature=0)).choose(equal, frozenset({0, 1})) == 2
    banned = Sampler(Sampling(seed=3))
    assert 0 not in {banned.choose(LOGITS, frozenset({0})) for _ in range(500)}
