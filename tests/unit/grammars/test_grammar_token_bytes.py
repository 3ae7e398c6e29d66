"""The bytes of tokens, for every order of a decoder's steps, beside what the tokenizers library decodes."""

from __future__ import annotations

import json
import random
import re
from itertools import permutations

import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from sgl.grammars import Vocabulary
from sgl.grammars.algebra.byte_marks import TOKEN
from sgl.grammars.tokens.token_bytes import byte_alphabet, token_bytes

STEPS = {
    "Replace(▁)": decoders.Replace("▁", " "),
    "Replace(b)": decoders.Replace("b", "<"),
    "Replace(ab)": decoders.Replace("ab", "x"),
    "Replace(regex)": decoders.Replace(Regex("b+"), "x"),
    "Metaspace": decoders.Metaspace("▁", "never"),
    "Fuse": decoders.Fuse(),
    "ByteFallback": decoders.ByteFallback(),
    "ByteLevel": decoders.ByteLevel(),
    "Strip": decoders.Strip("a", 1, 0),
}
PIECES = [
    "a",
    "b",
    "ab",
    "ba",
    "▁",
    "▁a",
    "é",
    "<",
    "Ġ",
    "<0x62>",
    "<0x61>",
    *(f"<0x{byte:02X}>" for byte in "▁é".encode()),
]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bytes_that_count_as_exact_are_what_decoding_gives(count: int) -> None:
    """Of every order of steps: a replacement behind `Fuse` is one of the text, not of
    a token. Strip touches the beginning alone.
    """
    for names in permutations(STEPS, count):
        compare(names)


def compare(names: tuple[str, ...]) -> None:
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="a"))
    backend.decoder = decoders.Sequence([STEPS[name] for name in names])
    tokens, exact = token_bytes(backend.get_vocab(), {}, json.loads(backend.decoder.__getstate__()))
    rng = random.Random(str(names))
    for ids in [rng.choices(range(len(PIECES)), k=rng.randint(1, 6)) for _ in range(60)] if exact else []:
        data = b"".join([tokens[i] for i in ids])
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        assert backend.decode(ids) in (text, text.removeprefix("a") if "Strip" in names else text), ids


def test_the_orders_that_published_tokenizers_have_are_exact() -> None:
    for names in (
        ["Replace(▁)", "ByteFallback", "Fuse", "Strip"],
        ["Replace(▁)", "ByteFallback", "Fuse"],
        ["ByteLevel"],
        ["Metaspace"],
        ["Fuse", "Replace(▁)"],
    ):
        decoder = decoders.Sequence([STEPS[name] for name in names])
        assert token_bytes({"a": 0}, {}, json.loads(decoder.__getstate__()))[1], names
    for names in (
        ["Fuse", "Replace(ab)"],
        ["ByteFallback", "Fuse", "Replace(▁)"],
        ["ByteLevel", "Replace(b)"],
        ["Replace(regex)"],
    ):
        decoder = decoders.Sequence([STEPS[name] for name in names])
        assert not token_bytes({"a": 0}, {}, json.loads(decoder.__getstate__()))[1], names


# many tokens at once next to one after the other


def random_tokens(rng: random.Random, parts: list[str], count: int) -> dict[str, int]:
    tokens = {"".join(rng.choices(parts, k=rng.randint(0, 5))) for _ in range(count)}
    ids = rng.sample(range(2 * count), len(tokens))
    return dict(zip(sorted(tokens), ids, strict=True))


def test_tokens_of_byte_level_vocabularies_are_read_as_one_is() -> None:
    rng, alphabet = random.Random(1), byte_alphabet()
    for parts in (list(alphabet), [*"abĠĊ", " ", "\n", "\0", "中", "🚀", "ń"]):
        vocabulary = random_tokens(rng, parts, 300)
        found, exact = token_bytes(vocabulary, {}, json.loads(decoders.ByteLevel().__getstate__()))
        assert exact
        for token, index in vocabulary.items():
            known = all(char in alphabet for char in token)
            assert found[index] == (bytes(alphabet[char] for char in token) if known else token.encode())


@pytest.mark.parametrize("names", [(), ("Replace(▁)",), ("Replace(▁)", "ByteFallback"), ("Replace(ab)", "Replace(b)")])
def test_tokens_of_plain_vocabularies_are_read_as_one_is(names: tuple[str, ...]) -> None:
    rng, steps = random.Random(2), {"Replace(▁)": ("▁", " "), "Replace(ab)": ("ab", "x"), "Replace(b)": ("b", "<")}
    decoder = json.loads(decoders.Sequence([STEPS[name] for name in names]).__getstate__())
    for parts in (PIECES, [*PIECES, "\0", "<0xfF>", "<0x0>"]):
        vocabulary = random_tokens(rng, parts, 300) | {"<0x41>": 601, "<0x0a>": 602, "<0x41>\n": 603}
        found, _ = token_bytes(vocabulary, {600: "<0x42>▁", 610: "▁"}, decoder, {600})
        for token, index in {**vocabulary, "▁": 610}.items():
            text = token
            for old, new in (steps[name] for name in names if name in steps):
                text = text.replace(old, new)
            byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token) if "ByteFallback" in names else None
            assert index == 600 or found[index] == (bytes([int(byte[1], 16)]) if byte else text.encode()), token
        assert found[600] == "<0x42>▁".encode()


def test_ids_of_text_are_those_of_each_token() -> None:
    rng = random.Random(3)
    for count in (1, 2, 50, 400):
        tokens = [
            bytes(rng.choices([0, 65, 127, TOKEN - 1, TOKEN, 255], k=rng.choice([0, 1, 1, 2, 3]))) for _ in range(count)
        ]
        special = set(rng.sample(range(count), rng.randint(0, min(count, 3))))
        found = Vocabulary.from_bytes(tokens, [], special)
        assert found.text_ids == [
            i for i, token in enumerate(tokens) if token and i not in special and max(token) < TOKEN
        ]
        assert all(found.text(i) == (tokens[i] if i in found.text_ids else b"") for i in range(count))
