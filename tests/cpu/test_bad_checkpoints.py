"""Checkpoints that nobody should trust end in an error that names file, key and value, in bounded time and memory."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from safetensors.torch import load_file, save_file

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
ROOM, SECONDS = 2**30, 30  # bytes beside what Python and torch take; for one checkpoint, on a busy machine
LOADER = f"""
import json, resource, signal, sys, time
from sgl.runtime.errors import ConfigError
from sgl.runtime.loading import load_model
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + {ROOM},) * 2)
for path in sys.stdin.read().split("\\n"):
    signal.alarm({SECONDS})
    try:
        load_model(path)
        found = "loaded", ""
    except BaseException as error:
        found = type(error).__name__, str(error)
    print(json.dumps(found), flush=True)
"""


class Case(NamedTuple):
    """spoil: makes a whole checkpoint bad.  says: what the error must have in it."""

    spoil: Callable[[Path], None]
    says: tuple[str, ...]
    tied: bool = False


def key(name: str, value: Any, *says: str) -> Case:
    """A key of config.json with another value."""
    return Case(lambda path: edit_json(path / CONFIG, **{name: value}), (CONFIG, name, *says))


def rope(*says: str, **parameters: Any) -> Case:
    return Case(
        lambda path: edit_json(path / CONFIG, rope_parameters={"rope_theta": 1e4} | parameters),
        (CONFIG, "rope_parameters", *says),
    )


def config(text: str | bytes, *says: str) -> Case:
    data = text.encode() if isinstance(text, str) else text
    return Case(lambda path: void(path.joinpath(CONFIG).write_bytes(data)), (CONFIG, *says))


def void(_: object) -> None: ...


def tensors(*says: str, tied: bool = False, **changes: torch.Tensor | None) -> Case:
    """Other tensors in the file; None takes one away."""

    def spoil(path: Path) -> None:
        kept = {name: tensor for name, tensor in (load_file(path / WEIGHTS) | changes).items() if tensor is not None}
        save_file(kept, path / WEIGHTS)

    return Case(spoil, says, tied)


def entry(*says: str, **fields: Any) -> Case:
    """The header's entry of one tensor says something else."""

    def spoil(path: Path) -> None:
        header, rest = read(path / WEIGHTS)
        header[Q_PROJ] |= fields
        write(path / WEIGHTS, json.dumps(header).encode(), rest)

    return Case(spoil, (WEIGHTS, "damaged or cut short", *says))


def header(change: Callable[[bytes], bytes], *says: str) -> Case:
    """The header's text is another one."""

    def spoil(path: Path) -> None:
        found, rest = read(path / WEIGHTS)
        write(path / WEIGHTS, change(json.dumps(found).encode()), rest)

    return Case(spoil, (WEIGHTS, "damaged or cut short", *says))


def read(file: Path) -> tuple[dict[str, Any], bytes]:
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(file: Path, head: bytes, rest: bytes) -> None:
    file.write_bytes(struct.pack("<Q", len(head)) + head + rest)


def says_length(length: int, size: int | None = None) -> Case:
    """A header whose length is a lie; size: of the file, which has holes."""

    def spoil(path: Path) -> None:
        with open(path / WEIGHTS, "r+b") as stream:
            stream.write(struct.pack("<Q", length))
            stream.truncate(size)

    return Case(spoil, (WEIGHTS, "damaged or cut short", f"{length:,}"))


def index(weight_map: Any, *says: str) -> Case:
    return Case(lambda path: void((path / INDEX).write_text(json.dumps({"weight_map": weight_map}))), (INDEX, *says))


def elsewhere(path: Path) -> None:
    """Weights that lie beside the checkpoint's folder, and an index that leads there."""
    (path / WEIGHTS).rename(path.parent / "stolen.safetensors")
    (path / INDEX).write_text(json.dumps({"weight_map": {Q_PROJ: "../stolen.safetensors"}}))


def twice(path: Path) -> None:
    """Two shards with the same tensors."""
    (path / "b.safetensors").write_bytes((path / WEIGHTS).read_bytes())
    (path / INDEX).write_text(json.dumps({"weight_map": {Q_PROJ: WEIGHTS, "x": "b.safetensors"}}))


def instead(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Something else in a file's place."""

    def spoil(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return spoil


def spaces(file: Path) -> None:
    """A gigabyte of spaces before the object, most of it a hole of zeros: it is not read so far."""
    with open(file, "wb") as stream:
        stream.write(b" " * 2**23)
        stream.truncate(2**30)


NESTED = "[" * 10_000 + "]" * 10_000
CASES: dict[str, Case] = {
    "a tensor is missing": tensors("lacks 1 of 30 tensors", Q_PROJ, **{Q_PROJ: None}),
    "a tensor too many": tensors(WEIGHTS, "'model.stranger' has no place", **{"model.stranger": torch.zeros(2)}),
    "a tensor with a name of a megabyte": tensors(WEIGHTS, "has no place", **{"x" * 2**20: torch.zeros(2)}),
    "a tensor of a layer that is not there": tensors(
        "layers.7.", "has no place", **{Q_PROJ.replace("0", "7"): torch.zeros(64, 64)}
    ),
    "a wrong shape": tensors(WEIGHTS, Q_PROJ, "[64, 32]", "[64, 64]", **{Q_PROJ: torch.zeros(64, 32)}),
    "a shape turned round": tensors(
        WEIGHTS, "mlp.down_proj", "[96, 64]", **{"model.layers.0.mlp.down_proj.weight": torch.zeros(96, 64)}
    ),
    "a wrong dtype": tensors(
        WEIGHTS, Q_PROJ, "(I8 [64, 64]) is not a float", **{Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)}
    ),
    "float8 without its scales": tensors(
        WEIGHTS, Q_PROJ, "weight_scale is missing", **{Q_PROJ: torch.zeros(64, 64).to(torch.float8_e4m3fn)}
    ),
    "a tied head of another shape": tensors(
        WEIGHTS, "lm_head.weight", "[7, 64]", "[320, 64]", tied=True, **{"lm_head.weight": torch.zeros(7, 64)}
    ),
    "a wide model": key("hidden_size", 10**9, "at most", "1000000000"),
    "many layers": key("num_hidden_layers", 10**9, "at most 2,000"),
    "more layers than tensors": key("num_hidden_layers", 2000, "2000 layers", "30 tensors"),
    "no layers": key("num_hidden_layers", 0, "at least 1, not 0"),
    "layers below zero": key("num_hidden_layers", -3, "at least 1, not -3"),
    "many words": key("vocab_size", 10**12, "at most", "1000000000000"),
    "many words, just allowed": Case(
        lambda path: edit_json(path / CONFIG, vocab_size=2**24), (WEIGHTS, "[16777216, 64]")
    ),
    "wide, just allowed": Case(lambda path: edit_json(path / CONFIG, hidden_size=2**20), (WEIGHTS, "[320, 1048576]")),
    "a wide inside, just allowed": Case(
        lambda path: edit_json(path / CONFIG, intermediate_size=2**20), (WEIGHTS, "mlp.", "1048576")
    ),
    "heads without width": key("head_dim", 0, "at least 1, not 0"),
    "heads below zero": key("num_attention_heads", -4, "at least 1, not -4"),
    "a number with a point": key("hidden_size", 64.5, "must be int, not 64.5"),
    "true for a number": key("hidden_size", True, "must be int, not True"),
    "text for a number": key("hidden_size", "64", "must be int, not '64'"),
    "a list for a number": key("hidden_size", [64], "must be int, not [64]"),
    "a number of a thousand digits": key("hidden_size", 10**1000, "at most"),
    "no number": key("rms_norm_eps", float("nan"), "must be a finite number, not nan"),
    "infinity": key("rms_norm_eps", float("inf"), "must be a finite number, not inf"),
    "an epsilon below zero": key("rms_norm_eps", -1.0, "at least 0", "-1.0"),
    "an activation that is none": key("hidden_act", "x" * 10**6, "is not supported"),
    "a key that the family does not read": key("sliding_window", 3, "(3) is not understood"),
    "architectures in a list": key("architectures", [["LlamaForCausalLM"]], "is not supported"),
    "a text config that is none": key("text_config", 7, "must be an object, not 7"),
    "layer kinds that are none": key("layer_types", [[]] * 3, "is not understood"),
    "a rotation by zero": rope("'factor' must be above 0", rope_type="linear", factor=0),
    "a rotation of one": rope("must be above 1", rope_theta=1),
    "a rotation without end": rope("'rope_theta' must be a finite number", rope_theta=float("inf")),
    "frequencies that meet": rope(
        "low_freq_factor=4.0 must be below",
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=4.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "stretches that are words": rope(
        "short_factor must be a list of 8 numbers", rope_type="longrope", short_factor=["1"] * 8, long_factor=[1] * 8
    ),
    "a kind of rotation that is a list": rope("must be str", rope_type=["linear"]),
    "no JSON": config("{hidden_size: 3}", "cannot be read as JSON"),
    "no object": config("[1]", "must hold a JSON object, not list"),
    "nothing": config("", "cannot be read as JSON"),
    "no text": config(b"\xff\xfe\x00{", "cannot be read as JSON"),
    "deep": config('{"a": ' + NESTED + "}", "nests deeper"),
    "deep, where JSON is still read": config('{"a": ' + "[" * 200 + "]" * 200 + "}", "nests deeper"),
    "a key twice": config('{"hidden_size": 64, "hidden_size": 32}', "the name 'hidden_size' twice"),
    "a gigabyte of spaces": Case(instead(CONFIG, spaces), (CONFIG, "1,073,741,824 bytes")),
    "a pipe": Case(instead(CONFIG, os.mkfifo), (CONFIG, "not a regular file")),
    "a device without end": Case(
        instead(CONFIG, lambda file: file.symlink_to("/dev/zero")), (CONFIG, "not a regular file")
    ),
    "a config that leads nowhere": Case(
        instead(CONFIG, lambda file: file.symlink_to("nowhere")), (CONFIG, "is missing")
    ),
    "a config that leads to itself": Case(instead(CONFIG, lambda file: file.symlink_to(file)), (CONFIG,)),
    "a header beyond the file": says_length(10**7),
    "a header of 10**15 bytes": says_length(10**15),
    "a header of 2**64 - 1 bytes": says_length(2**64 - 1),
    "a header of 10**12 bytes in a file that has them": says_length(10**12, size=2 * 10**12),
    "a header of none": says_length(0),
    "offsets below zero": entry("data_offsets", data_offsets=[-4, 16380]),
    "offsets turned round": entry(data_offsets=[16384, 0]),
    "offsets beyond the file": entry(data_offsets=[0, 10**15]),
    "offsets with a point": entry("data_offsets", data_offsets=[0.0, 16384.0]),
    "three offsets": entry("data_offsets", data_offsets=[0, 16384, 3]),
    "offsets that overlap": entry("begins at byte", data_offsets=[64, 16448]),
    "a shape below zero": entry("shape [-64, -64]", shape=[-64, -64]),
    "a shape without end": entry("bytes for F32", shape=[2**62, 2**62, 2**62]),
    "a shape of a million dimensions": entry("values, at most", shape=[10**18] * 10**6),
    "a shape that is text": entry("shape", shape="64"),
    "a dtype that is a list": entry("dtype", dtype=["F32"]),
    "a dtype that is not known": Case(entry(dtype="F3").spoil, (WEIGHTS, Q_PROJ, "(F3 [64, 64]) is not a float")),
    "an entry that is a number": header(
        lambda head: head.replace(b'{"dtype"', b'7, "x": {"dtype"', 1), "is described by 7"
    ),
    "a name twice": header(lambda head: head[:-1] + b"," + head[1:], "twice"),
    "a header that is deep": header(lambda head: b'{"__metadata__": ' + NESTED.encode() + b"}", "nests deeper"),
    "a header that is a list": header(lambda head: b"[" + head + b"]", "not list"),
    "a header cut short": header(lambda head: head[:-9], "("),
    "weights cut short": Case(
        lambda path: os.truncate(path / WEIGHTS, (path / WEIGHTS).stat().st_size - 4), (WEIGHTS, "damaged or cut short")
    ),
    "weights that are a folder": Case(instead(WEIGHTS, Path.mkdir), ("lacks the weights", WEIGHTS)),
    "weights that are a pipe": Case(instead(WEIGHTS, os.mkfifo), ("lacks the weights", WEIGHTS)),
    "weights that lead nowhere": Case(
        instead(WEIGHTS, lambda file: file.symlink_to("nowhere")), ("lacks the weights", WEIGHTS)
    ),
    "weights that lead to themselves": Case(
        instead(WEIGHTS, lambda file: file.symlink_to(file)), ("lacks the weights", WEIGHTS)
    ),
    "an index that leads out": Case(elsewhere, (INDEX, Q_PROJ, "'../stolen.safetensors'")),
    "an index that leads to the root": index({Q_PROJ: "/etc/x.safetensors"}, Q_PROJ, "'/etc/x.safetensors'"),
    "an index that leads to another kind of file": index({Q_PROJ: "weights.bin"}, "'weights.bin'"),
    "an index of numbers": index({Q_PROJ: 7}, Q_PROJ, "in 7"),
    "an index of lists": index({Q_PROJ: [WEIGHTS]}, Q_PROJ),
    "an index of nothing": index({}, "weight_map"),
    "an index of too many files": Case(
        index({str(n): f"{n}.safetensors" for n in range(10**5)}, "x").spoil, ("lacks the weights", "and 99992 more")
    ),
    "the same tensors twice": Case(twice, (WEIGHTS, "b.safetensors", "there twice")),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """What became of each checkpoint, one after the other in one process with little memory."""
    whole = {
        tied: write_checkpoint(tmp_path_factory.mktemp("whole"), tie_word_embeddings=tied) for tied in (False, True)
    }
    paths = []
    for number, case in enumerate(CASES.values()):
        path = tmp_path_factory.mktemp(f"bad{number}")
        for file in (CONFIG, WEIGHTS):
            (path / file).write_bytes((whole[case.tied] / file).read_bytes())
        case.spoil(path)
        paths.append(str(path))
    asked = "\n".join([str(whole[False]), *paths])
    done = subprocess.run([sys.executable, "-c", LOADER], input=asked, capture_output=True, text=True)
    found = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert found[:1] == [("loaded", "")], done.stderr  # there is room for what is whole
    yield dict(zip(CASES, found[1:], strict=False))


@pytest.mark.parametrize("name", CASES)
def test_a_bad_checkpoint_is_explained(name: str, outcomes: dict[str, tuple[str, str]]) -> None:
    assert name in outcomes, "it took all the time, or the process with it"
    kind, message = outcomes[name]
    assert kind in ("CheckpointError", "ConfigError"), message
    assert len(message) < 3000
    for part in CASES[name].says:
        assert part in message
