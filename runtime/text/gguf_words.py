"""How the tokenizers of GGUF files cut texts into words, by the name that a file gives for it (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

from sgl.runtime.errors import ConfigError

from .tiktoken_file import DIGITS_ALONE, DIGITS_IN_THREES


class Words(NamedTuple):
    """patterns: each cuts what the one before left whole; of words, GPT-2's comes last where `gpt2` is set.

    nfc: texts are composed before.  whole: a word that is a token stays one, whatever the merges say.  bos: comes before every text
    where the file does not say.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START, _SIGNS, _ENDINGS = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _by_case(ending: str, digits: str) -> str:
    """Words end where capitals begin."""
    return f"{_START}{_UPPER}*{_LOWER}+{ending}|{_START}{_UPPER}+{_LOWER}*{ending}|{digits}|{_SIGNS}"


_MARKS = DIGITS_ALONE.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")  # accents belong to letters
_DEEPSEEK = (
    r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)  # fmt: skip
_LLAMA3 = Words((DIGITS_IN_THREES,), whole=True, bos=True)
_GPT4O = Words((_by_case(_ENDINGS, r"\p{N}{1,3}"),))
_DIGITS = Words((r"\p{N}",), gpt2=True)
WORDS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Words((DIGITS_IN_THREES,))),
    "qwen2": Words((DIGITS_ALONE,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), Words((DIGITS_ALONE,))),
    "qwen35": Words((_MARKS,), nfc=True),
    "tekken": Words((_by_case("", r"\p{N}"),), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "exaone4"), Words(gpt2=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "command-r": _DIGITS._replace(nfc=True),
    "deepseek-v3": Words(_DEEPSEEK),
}  # fmt: skip


def words_of(name: Any, where: str) -> Words:
    """Raises ConfigError for a name that is missing or unknown: cutting otherwise costs quality without a sign."""
    if name not in WORDS:
        said = "there is no key tokenizer.ggml.pre" if name is None else f"tokenizer.ggml.pre={str(name)[:80]!r} is not known"
        raise ConfigError(
            f"{where}: {said}, so how texts are cut into words is not known; take a newer GGUF file of this model, or its safetensors "
            f"checkpoint. Known are {', '.join(WORDS)}"
        )
    return WORDS[name]


def pre_tokenizer(words: Words) -> Any:
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in words.patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.gpt2)])


def normalizer(words: Words) -> Any:
    return normalizers.NFC() if words.nfc else None
