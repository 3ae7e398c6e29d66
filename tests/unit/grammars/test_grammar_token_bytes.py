"""The bytes of tokens, for every order of a decoder's steps, beside what the tokenizers library decodes."""

from __future__ import annotations

import json
import random
from itertools import permutations

import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from sgl.grammars.tokens.token_bytes import token_bytes

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
