"""Tokenizers of GGUF files beside their tokenizer.json twins, and beside merging by hand."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
import tokenizer_kinds as kinds
from test_packed_arrays import packed
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sgl.grammars.tokens.packed_arrays import compiled
from sgl.runtime.errors import ConfigError
from sgl.runtime.text.tokenizer import Tokenizer
from sgl.runtime.text.tokenizer_files.gguf_pre_tokenizers import WORDS, pre_tokenizer
from sgl.runtime.text.tokenizer_files.gguf_tokenizer import end_ids, gguf_tokenizer, plain_summary

BEGIN = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
QWEN = kinds.LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = (AddedToken("<tool>", normalized=False), AddedToken("    ", normalized=False))
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), kinds.byte_level()])
FALCON = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Punctuation("contiguous"),
        kinds.byte_level(),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
)
CODER = pre_tokenizers.Sequence(
    [
        *(
            pre_tokenizers.Split(Regex(each), "isolated")
            for each in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
        ),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
TWINS: dict[str, Backend] = {
    "gpt-2": kinds.bpe(kinds.byte_level(), added=ADDED),
    "llama-bpe": kinds.bpe(kinds.words(kinds.LLAMA3), post=kinds.BOS_LAST, added=ADDED, ignore_merges=True),
    "qwen2": kinds.bpe(kinds.words(QWEN), normalizers.NFC(), added=ADDED),
    "deepseek-r1-qwen": kinds.bpe(kinds.words(QWEN)),
    "tekken": kinds.bpe(kinds.words(TEKKEN), post=kinds.bos(), ignore_merges=True),
    "gpt-4o": kinds.bpe(kinds.words(O200K)),
    "smollm": kinds.bpe(DIGITS),
    "command-r": kinds.bpe(DIGITS, normalizers.NFC()),
    "glm4": kinds.bpe(kinds.words(kinds.LLAMA3), ignore_merges=True, added=ADDED),
    "mpt": kinds.bpe(kinds.byte_level(), normalizers.NFC()),
    "falcon": kinds.bpe(FALCON),
    "deepseek-coder": kinds.bpe(CODER),
}
PARTS = [
    *"abcXYZ019 .,'\"\n\t  éßÄ日本👍́",
    "'s",
    "'LL",
    "  ",
    " the",
    "Hello",
    "naïve",
    "123456",
    "\r\n",
    "<|im",
    "_",
    "e\u0301",
]


def sentencepiece_twin() -> Backend:
    """As such models are converted: every pair that makes a piece, the highest score first."""
    spec = json.loads(kinds.llama2(kinds.PREPEND, None)().to_str())
    pieces, _ = kinds.spaced_bpe()
    spec["model"]["merges"] = [
        [text[:cut], text[cut:]]
        for text in pieces
        for cut in range(1, len(text))
        if {text[:cut], text[cut:]} <= set(pieces)
    ]
    return Backend.from_str(json.dumps(spec))


def byte_level_keys(backend: Backend, pre: str | None, **more: Any) -> dict[str, Any]:
    """As a converter writes them of a tokenizer.json."""
    spec, added = json.loads(backend.to_str()), backend.get_added_tokens_decoder()
    words = {index: word for word, index in backend.get_vocab(with_added_tokens=True).items()}
    types = [(CONTROL if added[i].special else USER) if i in added else NORMAL for i in range(len(words))]
    merges = [" ".join(pair) for pair in spec["model"]["merges"]]
    keys = {
        "model": "gpt2",
        "tokens": [words[i] for i in range(len(words))],
        "token_type": types,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    found = {f"{BEGIN}{name}": value for name, value in (keys | ({} if pre is None else {"pre": pre}) | more).items()}
    return found | {"general.architecture": "llama"}


def spm_keys(**more: Any) -> dict[str, Any]:
    """Of the sentencepiece twin: its merges are told by scores alone."""
    pieces, _ = kinds.spaced_bpe()
    rows = [
        *((word, 0.0, UNKNOWN if word == "<unk>" else CONTROL) for word in kinds.LLAMA2),
        *((f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)),
    ]
    rows += [(text, -float(i), NORMAL) for i, text in enumerate(pieces)]
    keys: dict[str, Any] = {"model": "llama", "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    keys |= dict(zip(("tokens", "scores", "token_type"), map(list, zip(*rows, strict=True)), strict=True))
    return {f"{BEGIN}{name}": value for name, value in (keys | more).items()}


def random_texts(seed: int, count: int = 120) -> list[str]:
    rng = random.Random(seed)
    return (
        ["".join(rng.choice(PARTS) for _ in range(rng.randint(0, 25))) for _ in range(count)]
        + tiny.CORPUS[:6]
        + ["", " ", "  a", "a  "]
    )


@pytest.mark.parametrize("pre", TWINS)
def test_byte_level_ids_are_those_of_the_twin(pre: str) -> None:
    twin, ours = TWINS[pre], gguf_tokenizer(byte_level_keys(TWINS[pre], pre), "m.gguf")
    for text in [*random_texts(1), "a<tool>b", "x    y", "<|im_start|>user\nhi<|im_end|>"]:
        assert ours.encode(text).tolist() == twin.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special_prefix=True).tolist() == twin.encode(text).ids or text == ""
        assert ours.decode(ours.encode(text).tolist(), False) == twin.decode(
            twin.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
        )


def test_each_name_cuts_in_its_own_way() -> None:
    """Names that share nothing are not mixed up: what they make of a text that tells them apart."""
    text = "HelloWorld's 12345 don'T  e\u0301"
    cuts = {
        pre: tuple(word for word, _ in pre_tokenizer(WORDS[pre]).pre_tokenize_str(text))
        for pre in TWINS | {"deepseek-v3": None}
    }
    assert (
        len(set(cuts.values())) == 9
    )  # qwen2 and deepseek-r1-qwen, smollm and command-r, gpt-2 and mpt, llama-bpe and glm4 cut alike
    for pre in (pre for pre, words in WORDS.items() if not words.escaped):
        tokenizer = gguf_tokenizer(byte_level_keys(TWINS["gpt-2"], pre), "m")
        plain = tokenizer.decode(tokenizer.encode(text).tolist())
        assert plain in (text, text.replace("e\u0301", "é"))


def test_a_word_that_is_a_token_stays_whole_where_the_name_says_so() -> None:
    """No merge leads to abc: "glm4" takes it as it is, "chatglm-bpe" does not."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "bc", "abc"]
    keys = {"model": "gpt2", "tokens": tokens, "token_type": [NORMAL] * len(tokens), "merges": ["a b", "b c"]}
    found = {}
    for pre in ("glm4", "glm5", "chatglm-bpe"):
        ours = gguf_tokenizer({f"{BEGIN}{name}": value for name, value in (keys | {"pre": pre}).items()}, "m")
        found[pre] = [tokens[i] for i in ours.encode("abc").tolist()]
    assert found == {"glm4": ["abc"], "glm5": ["abc"], "chatglm-bpe": ["ab", "c"]}


@pytest.mark.parametrize("how", [{"model": "gemma4"}, {"model": "gpt2", "pre": "gemma4"}])
def test_merges_of_escaped_text(how: dict[str, str]) -> None:
    """Gemma 4: spaces are ▁, other characters stand for themselves, and what is no token is written in bytes."""
    tokens = [
        "<unk>",
        "<bos>",
        "<eos>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *"▁abé\n",
        "▁a",
        "ab",
        "▁ab",
        "\n\n",
        "<tool>",
    ]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 9, USER]
    keys = how | {
        "tokens": tokens,
        "token_type": types,
        "merges": ["a b", "▁ ab", "▁ a", "\n \n"],
        "bos_token_id": 1,
        "unknown_token_id": 0,
    }
    keys |= {"add_bos_token": False}  # as early files say, which the model cannot do without
    ours = gguf_tokenizer({f"{BEGIN}{name}": value for name, value in keys.items()}, "m")
    text = "ab ab a\n\né本<tool>b"
    expected = ["ab", "▁ab", "▁a", "\n\n", "é", "<0xE6>", "<0x9C>", "<0xAC>", "<tool>", "b"]
    assert [tokens[i] for i in ours.encode(text).tolist()] == expected
    assert ours.decode(ours.encode(text).tolist(), False) == text and ours.prefix_ids == (1,)


@pytest.mark.parametrize("seed", range(3))
def test_sentencepiece_ids_are_those_of_the_twin(seed: int) -> None:
    ours, twin = gguf_tokenizer(spm_keys(), "m.gguf"), sentencepiece_twin()
    for text in random_texts(seed):
        assert ours.encode(text, special_prefix=True).tolist() == twin.encode(text).ids or text == ""
        continued = ours.encode(text).tolist()
        assert ours.decode(continued) == text


def test_sentencepiece_merges_the_pair_of_the_highest_score() -> None:
    keys = spm_keys()
    ours, scores = (
        gguf_tokenizer(keys, "m.gguf"),
        dict(zip(keys[f"{BEGIN}tokens"], keys[f"{BEGIN}scores"], strict=True)),
    )
    ids = {token: i for i, token in enumerate(keys[f"{BEGIN}tokens"])}
    for text in random_texts(5):
        symbols = list(text.replace(" ", "▁"))
        while True:
            pairs = [(-scores.get(left + right, -math.inf), i) for i, (left, right) in enumerate(pairwise(symbols))]
            score, place = min(pairs, default=(math.inf, 0))
            if score == math.inf:
                break
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        expected = [
            i
            for symbol in symbols
            for i in ([ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()])
        ]
        assert ours.encode(text).tolist() == expected


def test_prefixes_follow_the_keys() -> None:
    bos, none = (
        gguf_tokenizer(spm_keys(), "m"),
        gguf_tokenizer(spm_keys(add_bos_token=False, add_space_prefix=False), "m"),
    )
    assert bos.prefix_ids == (1,) and none.prefix_ids == ()
    assert (
        none.encode("the", special_prefix=True).tolist()
        == bos.encode("the").tolist()
        != bos.encode("the", special_prefix=True).tolist()[1:]
    )
    backend = TWINS["llama-bpe"]
    assert gguf_tokenizer(byte_level_keys(backend, "llama-bpe"), "m").prefix_ids == (1,)
    assert gguf_tokenizer(byte_level_keys(backend, "llama-bpe", add_bos_token=False), "m").prefix_ids == ()
    assert gguf_tokenizer(byte_level_keys(backend, "qwen2", add_bos_token=True), "m").prefix_ids == (1,)


def test_phi_3_takes_the_spaces_behind_its_marks() -> None:
    plain, phi = gguf_tokenizer(spm_keys(), "m"), gguf_tokenizer(spm_keys() | {"general.architecture": "phi3"}, "m")
    assert (
        phi.encode("<|im_end|> \n a").tolist()
        == phi.encode("<|im_end|>a").tolist()
        != plain.encode("<|im_end|> \n a").tolist()
    )
    assert phi.encode("<|endoftext|> a").tolist() == plain.encode("<|endoftext|> a").tolist()


def test_tokens_of_spaces_are_found_in_texts() -> None:
    """Gemma's are the user's: stored with plain spaces, though a piece has marks in their place."""
    keys = spm_keys()
    tokens, types, scores = (keys[f"{BEGIN}{name}"] for name in ("tokens", "token_type", "scores"))
    place = tokens.index("▁▁")
    tokens[place], types[place], scores[place] = "  ", USER, -1000.0
    found = gguf_tokenizer(keys, "m").encode("a  b").tolist()
    assert place in found


def test_a_whole_tokenizer_among_the_keys_comes_first(tmp_path: Path) -> None:
    twin = kinds.bpe(kinds.words(r"\p{L}|\P{L}+"), added=ADDED)
    keys = byte_level_keys(twin, "no such name") | {"tokenizer.huggingface.json": twin.to_str()}
    ours = gguf_tokenizer(keys, "m.gguf")
    assert all(
        ours.encode(text).tolist() == twin.encode(text, add_special_tokens=False).ids for text in random_texts(2)
    )
    for broken, said in (
        ("{}", "is no tokenizer"),
        (5, "must be a text"),
        ('{"added_tokens": [{}]}', "is no tokenizer"),
    ):
        with pytest.raises(ConfigError, match=f"huggingface.json.* {said}"):
            gguf_tokenizer(keys | {"tokenizer.huggingface.json": broken}, "m.gguf")


def test_what_ends_a_text() -> None:
    """Tokens that keys name, and control tokens that are spelled as ends: <|im_end|> and <|endoftext|> here."""
    keys = byte_level_keys(TWINS["qwen2"], "qwen2", eos_token_id=2, eot_token_id=4, eom_token_id=6)
    assert end_ids(keys, "m") == [2, 4, 6, 5]
    assert gguf_tokenizer(keys, "m").eos_ids == (2, 4, 6, 5)
    plain = keys | {f"{BEGIN}token_type": [NORMAL] * len(keys[f"{BEGIN}tokens"])}
    assert end_ids(plain, "m") == [2, 4, 6]
    harmony = [*keys[f"{BEGIN}tokens"][:-3], "<|end|>", "<|return|>", "<|call|>"]  # gpt-oss: <|end|> ends a channel
    keys |= {f"{BEGIN}tokens": harmony, f"{BEGIN}token_type": [NORMAL] * (len(harmony) - 3) + [CONTROL] * 3}
    assert end_ids(keys, "m") == [2, 4, 6, len(harmony) - 2, len(harmony) - 1]


def test_chat_templates_and_names_reach_the_tokenizer() -> None:
    keys = byte_level_keys(TWINS["qwen2"], "qwen2", padding_token_id=6) | {
        "tokenizer.chat_template": tiny.CHAT_TEMPLATE
    }
    ours = gguf_tokenizer(keys, "m")
    assert ours.bos_id == 1 and ours.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<|padding|>",
    }
    assert ours.render_chat([{"role": "user", "content": "hi"}]) == "<s><|im_start|>user\nhi<|im_end|>\n"
    both = gguf_tokenizer(keys | {"tokenizer.chat_template.tool_use": "{{ tools }}"}, "m")
    assert both.chat_sources == ["{{ tools }}", tiny.CHAT_TEMPLATE]
    own = gguf_tokenizer(keys, "m", chat_template="{{ messages[0]['content'] }}!")
    assert own.render_chat([{"role": "user", "content": "hi"}]) == "hi!"
    with pytest.raises(ConfigError, match=r"m: tokenizer\.chat_template: "):
        gguf_tokenizer(keys | {"tokenizer.chat_template": "{% for %}"}, "m")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": None}, "there is no key tokenizer.ggml.pre, so .*; take a newer GGUF file of this model"),
        (
            {"pre": "qwen-2"},
            r"tokenizer.ggml.pre='qwen-2' is not known.* \(nearest known: 'qwen2'\).* Known are llama-bpe",
        ),
        ({"pre": "whitespace"}, "tokenizer.ggml.pre='whitespace' is not supported: it is that of an encoder"),
        (
            {"model": "t5"},
            r"tokenizer.ggml.model='t5' \(unigram, .*\) is not supported; supported are gpt2, llama and gemma4",
        ),
        ({"model": "bert"}, r"tokenizer.ggml.model='bert' \(WordPiece, of encoders\) is not supported"),
        ({"merges": None}, "there is no key tokenizer.ggml.merges"),
        ({"model": None}, "tokenizer.ggml.model='None'"),
        ({"model": 5}, "'tokenizer.ggml.model' must be str, not 5"),
        ({"tokens": None}, "0 tokens"),
        ({"tokens": []}, "0 tokens"),
        ({"tokens": "abc"}, "a list of str"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "tokens that are there once, not 'a'"),
        ({"token_type": [1]}, "one for each of"),
        ({"token_type": ["x"]}, "a list of int"),
        ({"merges": ["ab"]}, "pairs with a space between, not 'ab'"),
        ({"merges": ["a nothing"]}, "does not take its merges"),
        ({"bos_token_id": 10**6}, "bos_token_id' must be the id of one of"),
        ({"eot_token_id": -1}, "eot_token_id' must be"),
        ({"add_bos_token": 1}, "add_bos_token' must be bool"),
        ({"model": "llama"}, "must have tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.0]}, "one for each of"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(changes: dict[str, Any], said: str) -> None:
    keys = byte_level_keys(TWINS["gpt-2"], "gpt-2") | {f"{BEGIN}{name}": value for name, value in changes.items()}
    with pytest.raises(ConfigError, match=said):
        gguf_tokenizer({name: value for name, value in keys.items() if value is not None}, "m.gguf")


def as_read(keys: dict[str, Any]) -> dict[str, Any]:
    """With lists of texts as a file's header has them."""
    return {
        name: packed(value) if type(value) is list and value and all(type(each) is str for each in value) else value
        for name, value in keys.items()
    }


@pytest.mark.parametrize("pre", TWINS)
def test_a_summary_is_that_of_the_tokenizer(pre: str) -> None:
    keys = byte_level_keys(TWINS[pre], pre)
    named, other = {"tokenizer.chat_template": "{{ bos_token }}"}, {"tokenizer.chat_template.tool_use": "{{ tools }}"}
    for more in ({}, named, other):
        made = gguf_tokenizer(keys | more, "m")
        found = plain_summary(as_read(keys | more), "m")
        assert found == (made.vocab_size, made.chat_template is not None) or compiled() is None


def test_a_summary_is_not_given_of_what_is_refused() -> None:
    rng = random.Random(7)
    keys, given, refused = byte_level_keys(TWINS["gpt-2"], "gpt-2", padding_token_id=6), 0, 0
    keys |= {"tokenizer.chat_template": "{{ bos_token }}"}
    odd = [None, 5, "x", 1.5, True, [], ["x"], [1], -1, 10**6, "a b", ["a a", "b"], "{% for %}", "gpt-2", "llama", "t5"]
    for _ in range(300):
        changed = dict(keys)
        name = rng.choice([*keys, f"{BEGIN}scores", f"{BEGIN}add_bos_token", f"{BEGIN}eot_token_id"])
        value = changed.get(name)
        if type(value) is list and rng.random() < 0.7:
            value = list(value)
            value[rng.randrange(len(value))] = rng.choice(["a", "", "x" * 5000, "zz zz", "a b", 1, 3])
            changed[name] = value
        else:
            changed[name] = rng.choice(odd)
        if changed[name] is None:
            del changed[name]
        found = plain_summary(as_read(changed), "m")
        try:
            made = gguf_tokenizer(as_read(changed), "m")
        except ConfigError:
            assert found is None, name
            refused += 1
        else:
            assert found in (None, (made.vocab_size, made.chat_template is not None)), name
            given += found is not None
    assert refused > 50 and (given > 50 or compiled() is None)


def test_hostile_pieces_are_bounded() -> None:
    keys = spm_keys()
    tokens = list(keys[f"{BEGIN}tokens"])
    tokens[300] = "x" * 100_000
    with pytest.raises(ConfigError, match="too long to be cut"):
        gguf_tokenizer(keys | {f"{BEGIN}tokens": tokens}, "m")
    keys = byte_level_keys(TWINS["gpt-2"], "gpt-2")
    tokens = list(keys[f"{BEGIN}tokens"])
    tokens[1] = "x" * 5000
    with pytest.raises(ConfigError, match="at most 4,096 characters"):
        gguf_tokenizer(keys | {f"{BEGIN}tokens": tokens}, "m")


def test_patterns_are_the_published_ones() -> None:
    """As the tokenizer.json files of these families have them."""
    assert WORDS["llama-bpe"].patterns == (kinds.LLAMA3,) and WORDS["qwen2"].patterns == (QWEN,)
    assert WORDS["tekken"].patterns == (TEKKEN,) and WORDS["gpt-4o"].patterns == (O200K,)
    assert all(pre_tokenizer(words).pre_tokenize_str("a") for words in WORDS.values())
    assert isinstance(gguf_tokenizer(byte_level_keys(TWINS["gpt-2"], "deepseek-v3"), "m"), Tokenizer)
