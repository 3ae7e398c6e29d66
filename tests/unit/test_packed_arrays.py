"""Arrays of a file kept as blocks: the compiled walk and the one in Python, and both next to plain lists."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import write_gguf
from registry_files import vocabularies

from sgl.grammars.tokens import packed_arrays
from sgl.grammars.tokens.packed_arrays import LENGTH, PackedNumbers, PackedTexts, find_texts, halves_of, merges_known
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading.gguf_files import gguf_file
from sgl.runtime.loading.gguf_files.gguf_file import read_gguf
from sgl.runtime.loading.gguf_files.kept_headers import headers_read_once
from sgl.runtime.text.tokenizer_files import bpe_merges

PARTS = ["", "a", " ", "b c", "\0", "é", "▁", "中", "🚀", "x" * 300, "\n", "<0x0A>"]
ODD = [
    b"\x80",
    b"\xc1\xbf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xe4\xb8",
    b"\xff",
]


@pytest.fixture(params=["compiled", "python"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "python":
        for module in (packed_arrays, bpe_merges):
            monkeypatch.setattr(module, "compiled", lambda: None)
    elif packed_arrays.compiled() is None:
        pytest.skip("the compiled core is not there")
    yield


def block_of(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def random_texts(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices(PARTS, k=rng.randint(0, 4))) for _ in range(count)]


def packed(texts: list[str]) -> PackedTexts:
    block = block_of([text.encode() for text in texts])
    return PackedTexts(block, find_texts(block, 0, len(texts)))


def test_texts_are_those_of_the_list(core: None) -> None:
    rng = random.Random(1)
    for count in [*range(20), 500]:
        texts = random_texts(rng, count)
        found = packed(texts)
        assert found == texts and found.tolist() == texts and list(found) == texts and len(found) == count
        assert [found[i] for i in range(count)] == texts and found[1:7:2] == texts[1:7:2] and found[-3:] == texts[-3:]
        assert found.halves() == [halves_of(text) for text in texts]
        assert found != [*texts, ""]


def test_halves_part_at_the_first_space_that_is_not_the_first_letter(core: None) -> None:
    assert packed(["a b", " b", "  b", "é b c", "ab", "", " ", "b "]).halves() == [
        ("a", "b"),
        " b",
        (" ", "b"),
        ("é", "b c"),
        "ab",
        "",
        " ",
        ("b", ""),
    ]


def test_damaged_blocks_end_before_the_damage(core: None) -> None:
    """Texts that are cut, too long or no UTF-8."""
    rng = random.Random(2)
    for _ in range(300):
        texts = [text.encode() for text in random_texts(rng, rng.randint(1, 9))]
        data, at = bytearray(b"??" + block_of(texts)), rng.randrange(2)
        for _ in range(rng.randint(0, 2)):
            data[rng.randrange(2, len(data))] = rng.choice([0, 1, 127, 128, 255])
        del data[rng.randint(2, len(data)) :]
        assert find_texts(bytes(data), 2, len(texts) + at).tolist() == by_hand(bytes(data), 2, len(texts) + at)


def test_what_is_no_utf_8_ends_the_walk(core: None) -> None:
    for odd in ODD:
        data = block_of([b"a", odd, b"b"])
        assert find_texts(data, 0, 3).tolist() == by_hand(data, 0, 3) == [LENGTH]
    for number in [*range(0x80, 0x900, 7), *range(0xD700, 0xD800), *range(0xE000, 0xE010), 0xFFFF, 0x10000, 0x10FFFF]:
        assert len(find_texts(block_of([chr(number).encode()]), 0, 1)) == 1


def by_hand(data: bytes, at: int, most: int) -> list[int]:
    places: list[int] = []
    while len(places) < most and at + LENGTH <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        try:
            text = data[at + LENGTH : at + LENGTH + length].decode()
        except UnicodeDecodeError:
            break
        if len(text.encode()) < length:
            break
        places.append(at + LENGTH)
        at += LENGTH + length
    return places


def test_numbers_are_those_of_the_list() -> None:
    for numbers in (
        np.arange(9, dtype="<u4"),
        np.array([0.5, -1.25], "<f4"),
        np.array([True, False]),
        np.zeros(0, "<i8"),
    ):
        found, values = PackedNumbers(numbers), numbers.tolist()
        assert found == values and [found[i] for i in range(len(found))] == values and found[2:5] == values[2:5]
        assert [type(value) for value in found] == [type(value) for value in values]
    assert repr(PackedNumbers(np.arange(9))) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]" and repr(packed(["a"])) == "['a']"


def test_places_that_are_none_are_refused() -> None:
    core = packed_arrays.compiled()
    if core is None:
        pytest.skip("the compiled core is not there")
    for places in ([0], [8, 9], [100], [-1], [2**31 - 1]):
        with pytest.raises(ValueError, match="no places"):
            core.texts_of(bytes(24), np.array(places, np.int32))
    with pytest.raises(ValueError, match="no place in the data"):
        core.find_texts(b"abc", 4, 1)


def hold(tokens: list[str], merges: list[str]) -> bool:
    pairs = list(map(halves_of, merges))
    known = set(tokens)
    return len(known) == len(tokens) and all(
        isinstance(pair, tuple) and {*pair, pair[0] + pair[1]} <= known for pair in pairs
    )


def test_merges_of_tokens_are_known() -> None:
    if packed_arrays.compiled() is None:
        assert not merges_known(packed(["a"]), packed([]))
        pytest.skip("the compiled core is not there")
    rng, found = random.Random(5), []
    for _ in range(400):
        letters = rng.sample(["a", "b", "é", "🚀", " ", "", "\0"], rng.randint(1, 5))
        tokens = list(dict.fromkeys(letters + [one + other for one in letters for other in letters]))
        merges = [f"{one} {other}" for one in letters for other in letters if one]
        rng.shuffle(tokens)
        for changed in (tokens, merges):
            if changed and rng.random() < 0.3:
                changed[rng.randrange(len(changed))] = rng.choice(["a", "ab", "b c d", "nothing", ""])
        found.append(hold(tokens, merges))
        assert merges_known(packed(tokens), packed(merges)) == found[-1]
    assert 50 < sum(found) < 350


def test_merges_that_are_made_to_take_long_are_left() -> None:
    """Tokens of one place in the table: the walk ends, and others look at them."""
    core = packed_arrays.compiled()
    if core is None:
        pytest.skip("the compiled core is not there")
    tokens, places = [], {}
    for number in range(2**17):
        text = str(number)
        hashed = 0xCBF29CE484222325
        for byte in text.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
        places.setdefault((hashed ^ hashed >> 32) % 2048 // 8, []).append(text)
    tokens = [text for texts in sorted(places.values(), key=len)[-4:] for text in texts][:1000]
    assert not merges_known(packed(tokens), packed([]))
    assert merges_known(packed([str(number) for number in range(1000)]), packed([]))


def test_pairs_of_pieces_are_all_that_make_them(core: None) -> None:
    rng = random.Random(4)
    for parts in (["a", "b", "é", "🚀"], [b"a", b"b", b"\x80"]):
        empty = parts[0][:0]
        pieces = [empty.join(rng.choices(parts, k=rng.randint(0, 5))) for _ in range(80)]
        known = set(pieces)
        expected = [
            (piece[:cut], piece[cut:])
            for piece in pieces
            for cut in range(1, len(piece))
            if piece[:cut] in known and piece[cut:] in known
        ]
        assert bpe_merges.all_pairs(pieces, pieces) == expected


# in files


def test_texts_across_the_pieces_that_are_read(core: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    for piece in (1, 7, 64, 1000):
        monkeypatch.setattr(gguf_file, "PIECE", piece)
        keys = {"a": random_texts(rng, 40), "b": list(range(50)), "c": ["", *random_texts(rng, 3)]}
        assert read_gguf(write_gguf(tmp_path / "m.gguf", keys, {})).metadata == keys


def test_an_array_with_a_damaged_text_is_refused_as_one_text_is(core: None, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", {"a": ["one", "two", "three"]}, {})
    good = file.read_bytes()
    for old, new, said in (
        (b"two", b"t\xff\xff", "key 'a': 'utf-8' codec can't decode byte 0xff in position 1"),
        (
            struct.pack("<Q", 3) + b"two",
            struct.pack("<Q", 2**40) + b"two",
            "key 'a': a text of 1,099,511,627,776 bytes",
        ),
        (
            struct.pack("<Q", 3) + b"two",
            struct.pack("<Q", 2**20) + b"two",
            "key 'a': 1,048,576 bytes are wanted at byte",
        ),
    ):
        file.write_bytes(good.replace(old, new))
        with pytest.raises(CheckpointError, match=said):
            read_gguf(file)


@pytest.mark.whole
def test_published_vocabularies_are_read_as_one_text_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without the compiled walk."""
    for file in vocabularies():
        compiled = read_gguf(file).metadata
        with monkeypatch.context() as patch:
            patch.setattr(packed_arrays, "compiled", lambda: None)
            assert read_gguf(file).metadata.keys() == compiled.keys()
            plain = {
                name: list(value) for name, value in read_gguf(file).metadata.items() if isinstance(value, PackedTexts)
            }
        assert plain and all(compiled[name].tolist() == texts for name, texts in plain.items())
        merges = compiled.get("tokenizer.ggml.merges", [])
        assert not merges or merges.halves() == [halves_of(merge) for merge in merges]


# kept headers


def test_a_file_is_read_once_while_headers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    read = gguf_file._read_file
    monkeypatch.setattr(gguf_file, "_read_file", lambda file: seen.append(file) or read(file))
    file = write_gguf(tmp_path / "m.gguf", {"a": 1}, {})
    read_gguf(file)
    with headers_read_once(), headers_read_once():
        assert read_gguf(file) is read_gguf(file) and len(seen) == 2
        write_gguf(file, {"a": 2, "b": 3}, {})
        assert read_gguf(file).metadata == {"a": 2, "b": 3} and len(seen) == 3
        with pytest.raises(CheckpointError, match="is missing"):
            read_gguf(tmp_path / "absent.gguf")
    read_gguf(file)
    assert len(seen) == 5


def test_nothing_is_kept_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGML")
    with headers_read_once():
        with pytest.raises(CheckpointError, match="does not begin with GGUF"):
            read_gguf(file)
        assert read_gguf(write_gguf(file, {"a": 1}, {})).metadata == {"a": 1}
