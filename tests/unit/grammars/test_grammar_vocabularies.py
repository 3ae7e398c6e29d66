"""Vocabularies of every kind, from real tokenizers: what a token stands for, and which may never come."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
from grammar_support import allowed, walk
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

sys.path.append(str(Path(__file__).parent.parent))
import tiny_tokenizers as tiny

from sgl.grammars import (
    GrammarError,
    InvalidGrammarError,
    UnsupportedGrammarError,
    Vocabulary,
    compile_choices,
    compile_json_schema,
    compile_regex,
    compile_structural,
)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
    "required": ["name"],
    "additionalProperties": False,
}
TEXTS = ['{"name": "the quick 日本 👍🏽"}', '{"name":"","tags":["red é","a\\n"]}', '{"name": "  <0x41> ▁", "tags": []}']


def unigram_backend():
    """tokenizer.json text as converted T5- and XLM-like models have it, with byte tokens."""
    corpus = " ".join(tiny.CORPUS)
    pieces = sorted({corpus[i : i + n].replace(" ", "▁") for n in (1, 2, 3) for i in range(0, len(corpus) - n, 3)})
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocab += [(b, -20.0) for b in bytes_] + [
        (p, -1.0 * i / len(pieces) - 5) for i, p in enumerate(pieces) if p.isascii() or "▁" in p
    ]
    backend = Backend(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return backend.to_str()


KINDS = {
    "byte-level": tiny.byte_level_backend(),
    "metaspace normalizer": tiny.metaspace_backend(),
    "metaspace pre-tokenizer": tiny.metaspace_backend(prepend="metaspace"),
    "metaspace, nothing put before": tiny.metaspace_backend(prepend="none"),
    "unigram": unigram_backend(),
}


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return tiny.build(KINDS[request.param])


def in_transformers(spec):
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(spec), eos_token="</s>")


@pytest.mark.parametrize("kind", KINDS)
def test_all_libraries_give_the_same_vocabulary(kind):
    spec = KINDS[kind]
    ours = Vocabulary.from_tokenizer(tiny.build(spec))
    for other in (
        Vocabulary.from_tokenizer(in_transformers(spec)),
        Vocabulary.from_tokenizer(Backend.from_str(spec), eos_ids=ours.eos_ids),
    ):
        assert other.tokens == ours.tokens and other.exact
        assert other.eos_ids == ours.eos_ids and other.special_ids == ours.special_ids


def test_generated_text_is_what_the_library_decodes(tokenizer):
    rng = random.Random(3)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    specials = tokenizer.special_ids
    for _ in range(15):
        matcher = compile_json_schema(SCHEMA, vocabulary).matcher()
        ids = []
        while not matcher.finished and len(ids) < 40:
            choices = sorted(allowed(matcher.mask()))
            assert not specials & set(choices) - set(vocabulary.eos_ids)
            ids.append(rng.choice(choices))
            assert matcher.accept(ids[-1])
        text = b"".join(vocabulary.tokens[i] for i in ids if i not in vocabulary.eos_ids)
        shown = tokenizer.backend_decode(ids, True)
        assert shown == text.decode("utf-8", "replace") or not text.isascii()
        if matcher.finished:
            assert shown == text.decode() and isinstance(json.loads(shown)["name"], str)


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizers_own_tokens_are_accepted(tokenizer, text):
    matcher = compile_json_schema(SCHEMA, Vocabulary.from_tokenizer(tokenizer)).matcher()
    for token in tokenizer.encode(text, parse_special=False).tolist():
        assert token in allowed(matcher.mask()) and matcher.accept(token)
    assert matcher.can_end


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "byte-level"])
def test_a_leading_space_is_a_space(kind):
    tokenizer = tiny.build(KINDS[kind])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    spaced = {i for i in vocabulary.text_ids if re.fullmatch(b" [a-z]+", vocabulary.tokens[i])}
    assert spaced and not any(tokenizer.backend_decode([i], False).startswith(" ") for i in spaced)
    first = allowed(compile_regex("[a-z]+", vocabulary).matcher().mask())
    assert not first & spaced
    first = allowed(compile_regex(" [a-z]+", vocabulary).matcher().mask())
    assert first >= spaced


def test_byte_tokens_spell_what_has_no_token(tokenizer):
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    matcher = compile_choices(["☂"], vocabulary).matcher()
    for byte in "☂".encode():
        (token,) = [i for i in allowed(matcher.mask()) if vocabulary.tokens[i] == bytes([byte])]
        assert matcher.accept(token)
    assert matcher.finished


def test_added_tokens_that_are_not_special_stand_for_their_text():
    tokenizer = tiny.byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    (added,) = [i for i, token in enumerate(vocabulary.tokens) if token == b"<tool>"]
    assert added in allowed(compile_regex("<tool>", vocabulary).matcher().mask())
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    assert {start, end} <= vocabulary.special_ids
    mask = allowed(compile_regex(r"[<|>a-z_]+", vocabulary).matcher().mask())
    assert added in mask and not {start, end} & mask


def test_wordpiece_is_refused():
    vocabulary = Vocabulary.from_tokenizer(tiny.wordpiece())
    assert not vocabulary.exact
    for make in (compile_regex, compile_json_schema, compile_structural):
        with pytest.raises(UnsupportedGrammarError, match="tokenizer"):
            make("{}", vocabulary)
    assert not Vocabulary.from_tokenizer(Backend.from_str(tiny.wordpiece_backend()), eos_ids=3).exact


def test_a_normalizer_does_not_change_what_tokens_stand_for():
    backend = Backend.from_str(tiny.byte_level_backend())
    backend.normalizer = normalizers.NFC()
    assert Vocabulary.from_tokenizer(backend).tokens == Vocabulary.from_tokenizer(tiny.byte_level()).tokens


def tekken(specials=1000):
    """Raw bytes behind a thousand special tokens, as in tekken.json."""
    words = [b" the", b'{"', b'": "', b'"}', b"\xe6\x97", b"name", "日本".encode(), b"\xf0\x9f\x91"]
    tokens = [f"<special {i}>".encode() for i in range(specials)] + [bytes([b]) for b in range(256)] + words
    return Vocabulary.from_bytes(tokens, [2], range(specials))


def test_a_thousand_special_tokens():
    rng = random.Random(1)
    vocabulary = tekken()
    assert allowed(compile_regex(r"<special \d+>", vocabulary).matcher().mask()) == {1000 + ord("<")}
    for _ in range(10):
        matcher = compile_json_schema(SCHEMA, vocabulary).matcher()
        assert allowed(matcher.mask()) == {1000 + ord("{"), 1257}
        assert not matcher.accept(3) and matcher.accept(1257)
        text = bytearray(b'{"')
        while not matcher.can_end and len(text) < 200:
            choices = sorted(allowed(matcher.mask()))
            assert min(choices) >= 1000
            token = rng.choice(choices)
            assert matcher.accept(token)
            text += vocabulary.tokens[token]
    assert walk(compile_regex("(the ){2}", tekken(0)).matcher(), rng) == b"the the "


def test_every_end_token_is_allowed_at_the_end_and_nowhere_else():
    spec = tiny.byte_level_backend()
    vocabulary = Vocabulary.from_tokenizer(in_transformers(spec), eos_ids=[3, 1])
    assert vocabulary.eos_ids == (3, 1) and {0, 1, 2, 3} == set(vocabulary.special_ids)
    assert Vocabulary.from_tokenizer(in_transformers(spec), eos_ids=3).eos_ids == (3, 1)
    matcher = compile_choices(["a"], vocabulary).matcher()
    assert not allowed(matcher.mask()) & vocabulary.special_ids
    assert matcher.accept(next(i for i in vocabulary.text_ids if vocabulary.tokens[i] == b"a"))
    assert allowed(matcher.mask()) == {1, 3}
    assert matcher.accept(3) and allowed(matcher.mask()) == {1, 3}


def test_the_ends_of_a_generation_config_reach_the_vocabulary(tmp_path):
    folder = tiny.write(tmp_path / "m", tiny.byte_level_backend(), generation_config={"eos_token_id": [3, 1]})
    assert Vocabulary.from_tokenizer(tiny.Tokenizer.load(folder)).eos_ids == (3, 1)


def test_equal_tokens_and_tokens_without_bytes():
    vocabulary = Vocabulary.from_bytes([b"a", b"", b"ab", b"a", b"", b"b", b"ab", b"</s>"], [7])
    assert allowed(compile_regex("ab", vocabulary).matcher().mask()) == {0, 2, 3, 6}
    matcher = compile_regex("(ab?)*", vocabulary).matcher()
    assert allowed(matcher.mask()) == {0, 2, 3, 6, 7}
    assert matcher.accept(3) and not matcher.accept(1) and not matcher.accept(4)
    assert allowed(matcher.mask()) == {0, 2, 3, 5, 6, 7}


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 63, 64, 65, 1000])
def test_sizes_that_fill_no_word(size):
    tokens = [b"a" * (i + 1) for i in range(size - 1)] + [b"</s>"]
    vocabulary = Vocabulary.from_bytes(tokens, [size - 1])
    matcher = compile_regex("a*", vocabulary).matcher()
    assert matcher.mask().shape == ((size + 31) // 32,)
    assert allowed(matcher.mask()) == set(range(size))
    assert allowed(compile_structural({"type": "any_text"}, vocabulary).matcher().mask()) == set(range(size))


def test_padding_is_never_allowed_and_what_has_no_logit_is_left_out():
    spec = tiny.byte_level_backend()
    own = Vocabulary.from_tokenizer(Backend.from_str(spec), eos_ids=1)
    padded = Vocabulary.from_tokenizer(Backend.from_str(spec), eos_ids=1, size=own.size + 100)
    cut = Vocabulary.from_tokenizer(Backend.from_str(spec), eos_ids=1, size=own.size - 5)
    rows = [allowed(compile_regex(".*", v).matcher().mask()) for v in (own, padded, cut)]
    assert padded.size == own.size + 100 and rows[0] == rows[1]
    assert rows[2] == {i for i in rows[0] if i < own.size - 5}
    assert not compile_regex(".*", padded).matcher().accept(own.size + 3)


def test_errors():
    with pytest.raises(GrammarError, match=r"tokens of a object.*from_bytes"):
        Vocabulary.from_tokenizer(object())
    with pytest.raises(InvalidGrammarError, match="99999 is outside the vocabulary"):
        Vocabulary.from_tokenizer(Backend.from_str(tiny.byte_level_backend()), eos_ids=[99999])
