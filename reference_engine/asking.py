"""From requests to questions: the prompt's tokens, how to choose the next, what ends the answer, how it has to look.

Pure.
"""

import zlib
from typing import Any

from reference_engine import grammar, tokenizer
from reference_engine.answer import Question
from reference_engine.api import Bad, Chat, Common, Completion
from reference_engine.grammar import Grammar
from reference_engine.sampling import Sampling


def completion_prompts(request: Completion, max_len: int) -> list[list[int]]:
    """Raises Bad."""
    given = request.prompt
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    if not several:
        return [_prompt(request, given, max_len)]
    return [_prompt(request, one, max_len) for one in given]


def _prompt(request: Completion, prompt: Any, max_len: int) -> list[int]:
    if isinstance(prompt, str):
        check_size(prompt, max_len)
        return [*([tokenizer.BEGIN] if request.add_special_tokens else []), *tokenizer.encode(prompt)]
    if not isinstance(prompt, list):
        raise Bad("the prompt is a text or a list of token ids", param="prompt")
    tokens = [token for token in prompt if isinstance(token, int)]
    if not tokens or len(tokens) != len(prompt):
        raise Bad("the prompt is empty, or mixes texts and token ids", param="prompt")
    _check_tokens(tokens, "prompt")
    return tokens


def chat_prompt(request: Chat, max_len: int) -> list[int]:
    """Raises Bad."""
    texts = [(message.role, message.text) for message in request.messages]
    for _, text in texts:
        check_size(text, max_len)
    return tokenizer.chat(texts)


def questions(request: Completion | Chat, prompts: list[list[int]], max_len: int) -> list[Question]:
    """One for each choice of each prompt. Raises Bad."""
    return [_question(request, prompt, max_len, choice) for prompt in prompts for choice in range(request.n)]


def _question(request: Completion | Chat, prompt: list[int], max_len: int, choice: int) -> Question:
    max_tokens = _max_tokens(request, prompt, max_len)
    if request.min_tokens > max_tokens:
        raise Bad(f"min_tokens {request.min_tokens} is more than max_tokens {max_tokens}", param="min_tokens")
    _check_tokens(request.stop_token_ids, "stop_token_ids")
    return Question(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=_sampling(request, choice),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop),
        stop_token_ids=frozenset(request.stop_token_ids),
        keep_stop=request.include_stop_str_in_output,
        ignore_end=request.ignore_eos,
        min_tokens=request.min_tokens,
        show_special=not request.skip_special_tokens,
        grammar=_grammar(request),
        logprobs=_logprobs(request),
        **_begun(request, prompt),
    )


def _begun(request: Completion | Chat, prompt: list[int]) -> dict[str, int]:
    """How much of the prompt is answer, and of its text the client's. Nothing if that isn't the tokens' text: who asked
    sees it where the prompt ends.
    """
    begun = request.vllm_xargs if isinstance(request, Completion) and request.stream else None
    if begun is None or not 0 < begun.tokens < len(prompt):
        return {}
    shown = tokenizer.Detokenizer(special=not request.skip_special_tokens)
    text = "".join(map(shown.push, prompt[-begun.tokens :]))[: begun.chars]
    if len(text) < begun.chars or zlib.crc32(text.encode()) != begun.crc32:
        return {}
    return {"answered": begun.tokens, "told": begun.chars}


def _max_tokens(request: Completion | Chat, prompt: list[int], max_len: int) -> int:
    room = max_len - len(prompt)
    if isinstance(request, Chat):
        wanted, name = request.max_completion_tokens or request.max_tokens, "max_completion_tokens"
    else:
        wanted, name = request.max_tokens or 16, "max_tokens"
    if room < 1 or (wanted or 0) > room:
        asked = f"{wanted} tokens are asked for" if wanted else "no room is left for an answer"
        raise Bad(
            f"this model's context is {max_len} tokens; the prompt has {len(prompt)}, and {asked}",
            param=name if wanted and room > 0 else "prompt" if isinstance(request, Completion) else "messages",
        )
    return wanted or room


def _sampling(request: Common, choice: int) -> Sampling:
    try:
        bias = {int(token): value for token, value in request.logit_bias.items()}
    except ValueError:
        raise Bad("logit_bias names tokens by their numbers", param="logit_bias") from None
    _check_tokens(list(bias), "logit_bias")
    words = [tuple(tokenizer.encode(word)) for word in request.bad_words if word]
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(0, request.top_k),
        seed=None if request.seed is None else request.seed + choice,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=bias,
        bad_words=tuple(words),
    )


def _logprobs(request: Completion | Chat) -> int | None:
    if isinstance(request, Chat):
        return request.top_logprobs if request.logprobs else None
    return request.logprobs


def parses(request: Completion | Chat) -> bool:
    """A parser stands between the tokens and the client."""
    return isinstance(request, Chat) and (thinks(request) or bool(_tools(request)))


def thinks(request: Chat) -> bool:
    return request.chat_template_kwargs.get("enable_thinking") is True


def _tools(request: Chat) -> dict[str, dict[str, Any] | None]:
    """Those that may be called."""
    if request.tool_choice == "none":
        return {}
    return {tool.function.name: tool.function.parameters for tool in request.tools}


def _grammar(request: Completion | Chat) -> Grammar | None:
    structured, form = request.structured_outputs, request.response_format
    found = None
    if structured is not None:
        found = grammar.choice(structured.choice)
    elif form is not None and form.type == "json_object":
        found = grammar.ANY_OBJECT
    if not isinstance(request, Chat):
        return found
    if tools := _tools(request):
        try:
            found = grammar.tool_call(tools, text=request.tool_choice == "auto")
        except grammar.Unknown as error:
            raise Bad(str(error), param="tools") from None
    return grammar.thoughts(found) if thinks(request) else found


def check_size(text: str, max_len: int) -> None:
    """Before time is spent on it."""
    least = len(text) // tokenizer.BYTES_MAX
    if least > max_len:
        raise Bad(f"this model's context is {max_len} tokens, and the prompt has at least {least}", param="prompt")


def _check_tokens(tokens: list[int], param: str) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < tokenizer.VOCABULARY:
        wrong = max(tokens)
        raise Bad(f"token id {wrong} is out of the vocabulary: 0 to {tokenizer.VOCABULARY - 1}", param=param)
