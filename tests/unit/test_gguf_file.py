"""Headers of GGUF files: what is read, and what is refused before memory is taken for it."""

from __future__ import annotations

import random
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_writer import Packed, Value, gguf_bytes, packed, write_gguf

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading.gguf_files.gguf_file import MOST_NAME, MOST_STRING, read_gguf, read_parts

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "small": Value(0, 200),
    "signed": Value(1, -3),
    "u16": Value(2, 65535),
    "i16": Value(3, -5),
    "u32": 7,
    "i32": Value(5, -7),
    "f32": 0.5,
    "yes": True,
    "tokens": ["a", "Zoë", ""],
    "numbers": [1, 2, 3],
    "flags": [True, False],
    "u64": Value(10, 2**63),
    "i64": Value(11, -(2**62)),
    "f64": Value(12, 0.1),
    "none": [],
    "bytes": Value(9, [Value(0, 1), Value(0, 2)]),
}
MOST_MEMORY = 8 * 2**20


def tensors() -> dict[str, Packed]:
    return {
        "a.weight": packed(torch.arange(6.0).view(2, 3)),
        "b.weight": packed(torch.randn(4, 32), "F16"),
        "c.weight": packed(torch.randn(3, 64), "Q8_0"),
        "d.weight": Packed("Q4_K", (2, 512), random.Random(0).randbytes(2 * 288)),
        "e.bias": packed(torch.arange(5.0)),
    }


def test_keys_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    for version in (2, 3):
        file = write_gguf(tmp_path / "m.gguf", METADATA, tensors(), version=version)
        found = read_gguf(file)
        assert found.metadata == {
            name: value.value if isinstance(value, Value) else value
            for name, value in METADATA.items()
            if name != "bytes"
        } | {"bytes": [1, 2]}
        assert {stored.name: (stored.dtype, stored.shape) for stored in found.tensors} == {
            name: (t.kind, list(t.shape)) for name, t in tensors().items()
        }
        data = file.read_bytes()
        assert all(
            data[stored.start : stored.stop] == tensors()[stored.name].data
            for stored in found.tensors
            if stored.name[0] in "ade"
        )


def test_tensors_stand_at_the_files_own_alignment(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", METADATA | {"general.alignment": 256}, tensors(), alignment=256)
    assert all(stored.start % 256 == 0 for stored in read_gguf(file).tensors)


def test_what_the_formats_own_package_writes_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    file, weight = tmp_path / "m.gguf", torch.randn(8, 64)
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(512)
    writer.add_token_list(["<s>", "a"])
    writer.add_rope_freq_base(1e6)
    writer.add_tensor("x.weight", weight.numpy())
    writer.add_tensor(
        "y.weight",
        gguf.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q5_1),
        raw_dtype=gguf.GGMLQuantizationType.Q5_1,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(file)
    assert found.metadata["general.architecture"] == "llama" and found.metadata["llama.rope.freq_base"] == 1e6
    assert found.metadata["tokenizer.ggml.tokens"] == ["<s>", "a"]
    assert [(stored.name, stored.dtype, stored.shape) for stored in found.tensors] == [
        ("x.weight", "F32", [8, 64]),
        ("y.weight", "Q5_1", [8, 64]),
    ]
    assert file.read_bytes()[found.tensors[0].start : found.tensors[0].stop] == weight.numpy().tobytes()


# hostile files


def refused(file: Path, data: bytes) -> str:
    """What the error says; it comes at once and costs no memory."""
    file.write_bytes(data)
    begin = time.thread_time()
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        read_gguf(file)
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    tracemalloc.stop()
    assert time.thread_time() - begin < 5
    return str(caught.value)


def header(tensors: int = 0, keys: int = 0, version: int = 3, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def name(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, count: int | None = None) -> bytes:
    return header(
        1,
        rest=name("w")
        + struct.pack(f"<I{len(sizes)}QIQ", len(sizes) if count is None else count, *sizes, kind, offset),
    ) + bytes(4096)


HUGE = (2**16, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
HOSTILE = {
    "not a file of the kind": (b"GGML" + bytes(100), "does not begin with GGUF"),
    "empty": (b"", "0 bytes"),
    "the first version": (header(version=1), "version 1: supported are 2 and 3"),
    "another machine's order": (header(version=3 << 24), "high byte first"),
    "no such type": (header(0, 1, rest=name("a") + struct.pack("<I", 13)) + bytes(64), "key 'a': there is no type 13"),
    "an array in an array": (
        header(0, 1, rest=name("a") + struct.pack("<IIQ", 9, 9, 1)) + bytes(64),
        "key 'a': arrays of type 9",
    ),
    "a bool of 2": (header(0, 1, rest=name("a") + struct.pack("<IB", 7, 2)) + bytes(64), "a bool is 2"),
    "no text": (header(0, 1, rest=name("a") + struct.pack("<IQ", 8, 2) + b"\xff\xfe") + bytes(64), "key 'a': 'utf-8'"),
    "a key twice": (
        header(0, 2, rest=2 * (name("a") + struct.pack("<IB", 0, 2))) + bytes(64),
        "key 'a' is there twice",
    ),
    "a tensor twice": (
        header(2, rest=2 * (name("w") + struct.pack("<IQIQ", 1, 1, 0, 0))) + bytes(64),
        "tensor 'w' is there twice",
    ),
    "no dimensions": (tensor(()), "0 dimensions"),
    "many dimensions": (tensor((1,) * 5), "5 dimensions"),
    "dimensions without end": (tensor(count=2**32 - 1), "4,294,967,295 dimensions"),
    "no numbers": (tensor((32, 0)), r"\[32, 0\]"),
    "a kind that is not supported": (tensor((256,), 16), "'w': weights of kind IQ2_XXS are not supported"),
    "a kind without a name": (tensor((32,), 4_000_000_000), "number 4,000,000,000"),
    "whole numbers": (tensor((32,), 26), "number 26"),
    "half a block": (tensor((48,), 8), "48 numbers, no multiple of 32"),
    "a hole": (tensor((32,), 0, 64), "begins at byte"),
    "bytes that are not there": (tensor((2**20,), 0), "ends at byte 4,194,368"),
    "an odd alignment": (gguf_bytes({"general.alignment": 48}, {}), "general.alignment=48"),
    "no alignment": (gguf_bytes({"general.alignment": 0}, {}), "general.alignment=0"),
    "alignment in words": (gguf_bytes({"general.alignment": "32"}, {}), "general.alignment='32'"),
}
HOSTILE |= {f"{count:,} tensors": (header(count) + bytes(4096), f"{count:,} tensors at byte 16") for count in HUGE}
HOSTILE |= {f"{count:,} keys": (header(0, count) + bytes(4096), f"{count:,} keys") for count in HUGE}
HOSTILE |= {
    f"a name of {size:,}": (header(0, 1, rest=struct.pack("<Q", size)) + bytes(4096), f"{size:,} bytes")
    for size in HUGE
}
HOSTILE |= {
    f"a text of {size:,}": (header(0, 1, rest=name("a") + struct.pack("<IQ", 8, size)) + bytes(4096), f"{size:,} bytes")
    for size in HUGE
}
HOSTILE |= {
    f"{count:,} values of type {kind}": (
        header(0, 1, rest=name("a") + struct.pack("<IIQ", 9, kind, count)) + bytes(4096),
        f"{count:,} values",
    )
    for count in HUGE
    for kind in (0, 7, 8, 12)
}
HOSTILE |= {f"an offset of {offset:,}": (tensor(offset=offset), "'w' begins") for offset in HUGE}
HOSTILE |= {f"a size of {size:,}": (tensor((size, 2)), "'w'") for size in HUGE}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_cannot_be_is_refused_at_once(what: str, tmp_path: Path) -> None:

    data, said = HOSTILE[what]
    found = refused(tmp_path / "m.gguf", data)
    assert re.search(said, found), found


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data, file = gguf_bytes(METADATA, tensors()), tmp_path / "m.gguf"
    file.write_bytes(data)
    last = read_gguf(file).tensors[-1].stop
    for length in [*range(0, 1100, 7), *range(1100, last, 211), last - 1]:
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_gguf(file)


def test_damaged_bytes_give_a_file_or_an_error(tmp_path: Path) -> None:
    """Whatever is read lies within the file."""
    whole, file, rng = gguf_bytes(METADATA, tensors()), tmp_path / "m.gguf", random.Random(1)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(1100)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        file.write_bytes(data)
        try:
            found = read_gguf(file)
        except CheckpointError:
            continue
        assert all(0 <= stored.start < stored.stop <= len(data) for stored in found.tensors)


def test_long_headers_are_bounded(tmp_path: Path) -> None:
    """A large file whose texts and names exceed what any model needs."""
    file = tmp_path / "m.gguf"
    for rest, said in (
        (struct.pack("<Q", MOST_NAME + 1), "65,537 bytes"),
        (name("a") + struct.pack("<IQ", 8, MOST_STRING + 1), f"{MOST_STRING + 1:,} bytes"),
        (name("a") + struct.pack("<IIQ", 9, 0, 2**23), "8,388,608 values"),
    ):
        with open(file, "wb") as stream:
            stream.write(header(0, 1, rest=rest))
            stream.truncate(2**28)
        tracemalloc.start()
        with pytest.raises(CheckpointError, match=said):
            read_gguf(file)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        tracemalloc.stop()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "absent.gguf", "is missing"), (tmp_path, "not a regular file")):
        with pytest.raises(CheckpointError, match=said):
            read_gguf(path)


# parts


def write_parts(folder: Path, count: int = 3, **changes: Any) -> list[Path]:
    names = list(tensors())
    files = []
    for number in range(count):
        own = {name: tensors()[name] for name in names[number::count]}
        metadata = {
            "split.no": Value(2, number),
            "split.count": Value(2, count),
            "split.tensors.count": Value(5, len(names)),
        } | changes
        files.append(
            write_gguf(
                folder / f"m-{number + 1:05}-of-{count:05}.gguf", METADATA | metadata if number == 0 else metadata, own
            )
        )
    return files


def test_all_parts_are_found_from_any(tmp_path: Path) -> None:
    files = write_parts(tmp_path)
    for file in files:
        parts = read_parts(file)
        assert [part.file for part in parts] == files
        assert {stored.name for part in parts for stored in part.tensors} == set(tensors())
        assert parts[0].metadata["general.architecture"] == "llama"
    whole = write_gguf(tmp_path / "whole.gguf", METADATA, tensors())
    assert [part.file for part in read_parts(whole)] == [whole]


def test_missing_parts_are_named(tmp_path: Path) -> None:
    files = write_parts(tmp_path)
    files[1].unlink()
    with pytest.raises(CheckpointError, match=r"3 files, of which 1 are not next to it: m-00002-of-00003\.gguf"):
        read_parts(files[0])
    with pytest.raises(CheckpointError, match=r"m-00001-of-99999.gguf is a part of a model of 99999 files.*\.\.\."):
        read_parts(tmp_path / "m-00001-of-99999.gguf")
    for odd in ("m-00004-of-00003.gguf", "m-00000-of-00000.gguf"):
        with pytest.raises(CheckpointError, match="complete the download"):
            read_parts(tmp_path / odd)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    files = write_parts(tmp_path)
    files[2].write_bytes(files[1].read_bytes())
    with pytest.raises(CheckpointError, match=r"split\.no=1, split\.count=3, by its name it is part 2"):
        read_parts(files[0])
    files = write_parts(tmp_path, **{"split.tensors.count": 9})
    with pytest.raises(CheckpointError, match=r"split\.tensors.count=9"):
        read_parts(files[0])
    lone = files[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"split\.count=3"):
        read_parts(lone)
    metadata = {"split.no": 1, "split.count": 2}
    write_gguf(tmp_path / "n-00001-of-00002.gguf", {"split.no": 0, "split.count": 2}, tensors())
    write_gguf(tmp_path / "n-00002-of-00002.gguf", metadata, tensors())
    with pytest.raises(CheckpointError, match="in two of its 2 parts"):
        read_parts(tmp_path / "n-00001-of-00002.gguf")
