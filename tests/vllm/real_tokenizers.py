"""Real tokenizers: the ones that Mistral has published, which come with vLLM, and one of each other kind, trained here.

`FAST` go the way of tokenizers' DecodeStream in vLLM, `SLOW` the way of its own Python. No download.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.vllm import tiny_model

TEXT = (
    "one engine sleeps while the other one is awake; isn't it? A seam, a stop, <b>bold</b> [1] don't\n"
    "\N{SNOWMAN} \N{GRINNING FACE}\N{GRINNING FACE}## caf\N{LATIN SMALL LETTER E WITH ACUTE} "
    "\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{CJK UNIFIED IDEOGRAPH-6587}  \t\n\n  \N{PILE OF POO}!"
)
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "<|end|>", "<tool_call>")


def _published(name: str) -> str:
    import mistral_common

    return str(Path(mistral_common.__file__).parent / "data" / name)


def _fast(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        additional_special_tokens=list(SPECIAL[3:5]),
        clean_up_tokenization_spaces=False,
    )


def byte_pairs() -> Any:
    """GPT-2's kind: a token is any bytes."""
    return _fast(tiny_model.tokenizer_of(TEXT, SPECIAL))


def _pieces() -> dict[str, int]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=_published("tokenizer.model.v1"))
    return {model.id_to_piece(number): number for number in range(model.get_piece_size())}


def byte_fallback() -> Any:
    """Llama 2's kind, and Mistral 7B's own vocabulary: bytes that are no token of it are tokens of one byte each, and
    what a text begins with loses its space.
    """
    from transformers import LlamaTokenizer

    return LlamaTokenizer(vocab=_pieces(), merges=[])


def unigram() -> Any:
    """T5's kind."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer: Any = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=list(SPECIAL), unk_token=SPECIAL[0], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return _fast(tokenizer)


def word_pieces() -> Any:
    """BERT's kind: a word that goes on has "##", and spaces before full stops go."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.WordPiece(unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer: Any = trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return _fast(tokenizer)


def words() -> Any:
    """A token is a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.WordLevel(unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator([TEXT], trainers.WordLevelTrainer(special_tokens=list(SPECIAL), show_progress=False))
    return _fast(tokenizer)


def _of_mistral(name: str) -> Any:
    from transformers.tokenization_mistral_common import MistralCommonBackend
    from vllm.tokenizers.mistral import MistralTokenizer

    return MistralTokenizer(MistralCommonBackend(tokenizer_path=_published(name)))


def tekken() -> Any:
    """Mistral Nemo's own, of 131,072 tokens."""
    return _of_mistral("tekken_240911.json")


def sentence_pieces() -> Any:
    """Mistral 7B's third, as its makers load it."""
    return _of_mistral("mistral_instruct_tokenizer_240323.model.v3")


def in_python() -> Any:
    """The same vocabulary through transformers' Python."""
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    return SentencePieceBackend(
        vocab_file=_published("tokenizer.model.v1"),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["[INST]", "<|end|>"],
    )


FAST: tuple[Callable[[], Any], ...] = (byte_pairs, byte_fallback, unigram, word_pieces, words)
SLOW: tuple[Callable[[], Any], ...] = (tekken, sentence_pieces, in_python)


@cache
def made(make: Callable[[], Any]) -> Any:
    """As an engine has it, with what is asked for each token kept (`vllm.tokenizers`)."""
    from vllm.tokenizers.hf import get_cached_tokenizer

    return get_cached_tokenizer(make()) if make in FAST else make()
