"""How the tokenizers of GGUF files cut texts into words, by the name that a file gives for it (`tokenizer.ggml.pre`).

The names are those of llama.cpp's vocabulary source; the patterns are those of the published tokenizer.json files.
Where a published pattern takes time that grows with the square of a run of digits or spaces, the same cuts are written
in linear steps.
"""

from __future__ import annotations

import difflib
import logging
from typing import Any, NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

from sgl.runtime.errors import ConfigError

from .tiktoken_file import DIGITS_ALONE, DIGITS_IN_THREES

log = logging.getLogger("sgl.runtime")


class PreTokenizerRules(NamedTuple):
    """patterns: every match is a word, and so is what is between two; each pattern is applied to the words that the one
    before made. (pattern, behavior) is another behavior of `tokenizers.pre_tokenizers.Split`.

    nfc: texts are composed (NFC) before they are cut.  whole: a word that is a token stays one, whatever the
        merges say.
    bos: the token of the beginning comes before every text where the file does not say.  escaped: spaces are
        written `▁` and other characters stay themselves; without it every byte is written as a letter, as in GPT-2.
    """

    patterns: tuple[str | tuple[str, str], ...] = ()
    nfc: bool = False
    whole: bool = False
    bos: bool = False
    escaped: bool = False


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START, _ENDINGS = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_case(
    ending: str, digits: str, upper: str = _UPPER, lower: str = _LOWER, signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
) -> str:
    """Words end where capitals begin."""
    return f"{_START}{upper}*{lower}+{ending}|{_START}{upper}+{lower}*{ending}|{digits}|{signs}|{_SPACES}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT, _THREES = r"\p{N}", r"\p{N}{1,3}"
_O200K = _by_case(f"{_ENDINGS}?", _THREES)
_MARKS = DIGITS_ALONE.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)  # accents belong to letters
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"

# DeepSeek
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
    "\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_HAN, _KANA = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_WORDS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
_WIDE_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_LLM = PreTokenizerRules((r"[\r\n]", rf"\s?[{_CASED}]+", _WIDE_SIGNS, r"(?<!\s)\s++$", _HAN, r"\p{N}+"))
_DEEPSEEK_CODER = PreTokenizerRules((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _DIGIT))
_DEEPSEEK_WORDS = rf"{_ASCII_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_DEEPSEEK3 = PreTokenizerRules((_THREES, _KANA, _DEEPSEEK_WORDS))
_SPARK = PreTokenizerRules((_THREES, _KANA, rf"{_ASCII_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", _DIGIT))

# threes of digits that are counted from the right
_RUNS_OF_THREES = (_DIGIT + "+", r"\A\p{N}{1,2}(?=(?:\p{N}{3})+\z)", r"\p{N}{3}")
_RUNS_AT_WORD_ENDS = (
    r"(?<!\d)\d++\b",
    r"\A\d{1,2}(?=(?:\d{3})+\z)",
)  # O200K cuts the rest, and what letters follow, from the left
_RUNS_OF_SUPERBPE = (_DIGIT + "+", (r"(?:\d{3})+(?!\d)", "merged_with_next"), r"\d{3}(?=\d{3})")

# others that stand alone
_JAIS2_SPACES = "".join([rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")]) + r"\s{1}"
_JAIS2 = DIGITS_IN_THREES.replace(r"\s+(?!\S)|\s+", _JAIS2_SPACES)
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|" + _KANA
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI = r"[\p{Han}]+|" + _by_case(
    f"{_ENDINGS}?", _THREES, _UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, r" ?[^\s\p{L}\p{N}]+[\r\n]*"
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = DIGITS_ALONE.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_UFAKZEKA = DIGITS_ALONE.removeprefix(f"{_ENDINGS}|")
_EXAONE_MOE = (
    _ENDINGS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    _DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_LLAMA3, _THREES_ALONE = (
    PreTokenizerRules((DIGITS_IN_THREES,), whole=True, bos=True),
    PreTokenizerRules((DIGITS_IN_THREES,)),
)
_QWEN, _SINGLE_DIGITS, _GEMMA = (
    PreTokenizerRules((DIGITS_ALONE,)),
    PreTokenizerRules((_DIGIT, _GPT2)),
    PreTokenizerRules(escaped=True),
)


def _of(names: str, words: PreTokenizerRules) -> dict[str, PreTokenizerRules]:
    return dict.fromkeys(names.split(), words)


WORDS = {
    **_of("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3),
    **_of("glm4 glm5", _THREES_ALONE._replace(whole=True)),
    **_of("dbrx smaug-bpe chatglm-bpe", _THREES_ALONE),
    **_of("qwen2 f2llmv2", _QWEN._replace(nfc=True)),
    **_of("deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2", _QWEN),
    **_of("qwen35", PreTokenizerRules((_MARKS,), nfc=True)),
    **_of("tekken", PreTokenizerRules((_by_case("", _DIGIT),), whole=True, bos=True)),
    **_of("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizerRules((_O200K,))),
    **_of("granite-embed-multi-97m", PreTokenizerRules((_O200K,), whole=True)),
    **_of("tiny_aya cohere2moe", PreTokenizerRules((*_RUNS_AT_WORD_ENDS, _O200K))),
    **_of("youtu", PreTokenizerRules((_YOUTU, _by_case(f"{_ENDINGS}?", _DIGIT)), whole=True)),
    **_of("kimi-k2", PreTokenizerRules((_KIMI,))),
    **_of(
        "gpt-2 phi-2 exaone4 jais trillion granite-docling gigachat a.x-4.0 mellum modern-bert roberta-bpe",
        PreTokenizerRules((_GPT2,)),
    ),
    **_of("jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code", PreTokenizerRules((_GPT2,))),
    **_of("olmo mpt", PreTokenizerRules((_GPT2,), nfc=True)),
    **_of("smollm starcoder refact codeshell exaone minerva-7b mellum2", _SINGLE_DIGITS),
    **_of("command-r", _SINGLE_DIGITS._replace(nfc=True)),
    **_of("deepseek-llm", _DEEPSEEK_LLM),
    **_of("deepseek-coder", _DEEPSEEK_CODER),
    **_of("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3),
    **_of("spark2_5", _SPARK),
    **_of("falcon", PreTokenizerRules((_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]"))),
    **_of("default", PreTokenizerRules((_PUNCTUATION.replace("`", ""), _GPT2, _DIGIT + "+", "[0-9][0-9][0-9]"))),
    **_of("bloom poro-chat gpt3-finnish", PreTokenizerRules((_BLOOM,))),
    **_of("viking", PreTokenizerRules((_BLOOM, _DIGIT))),
    **_of("jais-2", PreTokenizerRules((_JAIS2,))),
    **_of("chameleon", PreTokenizerRules(_CHAMELEON, bos=True)),
    **_of("superbpe", PreTokenizerRules(_RUNS_OF_SUPERBPE)),
    **_of("afmoe", PreTokenizerRules((*_RUNS_OF_THREES, _ASIAN, _DEEPSEEK_WORDS))),
    **_of("bailingmoe bailingmoe2 llada-moe", PreTokenizerRules((_BAILING,))),
    **_of("seed-coder", PreTokenizerRules((_SEED,))),
    **_of("ufakzeka", PreTokenizerRules((_UFAKZEKA,))),
    **_of("laguna", PreTokenizerRules((r"[^\n]+|[\n]+", DIGITS_ALONE))),
    **_of("exaone-moe", PreTokenizerRules((_EXAONE_MOE,))),
    **_of("minicpm5", PreTokenizerRules((_THREES, DIGITS_IN_THREES.replace(_THREES, _DIGIT + "+")), whole=True)),
    **_of("gemma4 granite-embed-multi-311m", _GEMMA._replace(bos=True)),
    **_of("sarvam-moe", _GEMMA),
}
REFUSED = {"whitespace": "it is that of an encoder (jina-embeddings-v2-base-zh), which lowers letters and drops spaces"}


def pre_tokenizer_rules(name: Any, where: str) -> PreTokenizerRules:
    """Raises ConfigError for a name that is missing or unknown: cutting otherwise costs quality without a sign."""
    if name == "default":
        log.warning(
            "%s: tokenizer.ggml.pre='default' is the way of files whose converter did not know the tokenizer; texts "
            "may be cut wrongly",
            where,
        )
    if name in WORDS:
        return WORDS[name]
    if name in REFUSED:
        raise ConfigError(f"{where}: tokenizer.ggml.pre={name!r} is not supported: {REFUSED[name]}")
    said = (
        "there is no key tokenizer.ggml.pre" if name is None else f"tokenizer.ggml.pre={str(name)[:80]!r} is not known"
    )
    near = [] if name is None else difflib.get_close_matches(str(name)[:80], WORDS, 1)
    raise ConfigError(
        f"{where}: {said}, so how texts are cut into words is not "
        f"known{f' (nearest known: {near[0]!r})' if near else ''}; take a newer GGUF "
        f"file of this model, or its safetensors checkpoint. Known are {', '.join(WORDS)}"
    )


def pre_tokenizer(words: PreTokenizerRules) -> Any:
    splits = [_split(*((each, "isolated") if isinstance(each, str) else each)) for each in words.patterns]
    letters = [] if words.escaped else [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return pre_tokenizers.Sequence([*splits, *letters])


def _split(pattern: str, behavior: Any) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior)


def normalizer(words: PreTokenizerRules) -> Any:
    steps = [*([normalizers.NFC()] if words.nfc else []), *([normalizers.Replace(" ", "▁")] if words.escaped else [])]
    return normalizers.Sequence(steps) if len(steps) > 1 else steps[0] if steps else None
