"""What models have beside plain weights, over two cards: few bits that the checkpoint brings, adapters, other weights
while it runs, scales of fp8 keys and
values. Two ranks of one layer's width, and two stages; the texts, or in few bits about the scores, of one."""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from family_checks import reference
from plain_adapters import write_adapter
from ranks_rig import updated
from safetensors.torch import load_file, save_file
from test_experts import in_mxfp4
from test_gguf_engine import file_of
from test_kv_scales import WRITERS, scales, written
from test_quantized_loading import FORMATS, write
from test_ranks_quantized import without_order

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.layers.float8_reference import KVScaleFactors

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]

ON_CPU: dict[str, Any] = {"device": "cpu", "dtype": "float32", "threads": 1, "kv_tokens": 4096, "max_running": 8}
ON_GPU = ON_CPU | {"device": "cuda"}
WAYS: dict[str, dict[str, Any]] = {"ranks": {"tensor_parallel": 2}, "stages": {"pipeline_parallel": 2}}
TEXTS = ["The quick brown fox", "1 + 1 =", "a b " * 40]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPTS = [list(range(40, 52)), list(range(200, 230)), [5, 6, 7], list(range(60, 140))]
OWNERS = [None, "0", "1", "2", "0", None, "3", "3", "2", "1"]
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
# of the scores' spread, that one card and two usually differ by in bfloat16 at most, and never by three times that: a
# wrong part differs by 1 and more
NEAR = 0.12
ROUNDED = {
    "fp8 outputs": 0.25,
    "experts in mxfp4": 0.2,
    "plain": 0.2,
}  # of which many rows are rounded to fp8 too, or where a token may go to another expert


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Engine]:
    """With the seconds that it took."""
    began = time.monotonic()
    with Engine(path, **options) as engine:
        print(f"\n{path.name} {options} opened after {time.monotonic() - began:.1f} s", flush=True)
        yield engine
    print(f"closed after {time.monotonic() - began:.1f} s", flush=True)


def told(engine: Engine) -> None:
    info = engine.info()
    for name in ("few_bits", "kv_scales", "layers", "adapters", "slower", "sums_over_ranks", "stages", "memory"):
        print(f"  {name}: {info.get(name)}")
    for row in info["products"]:
        print(f"  product: {row}")
    sys.stdout.flush()


def same(ours: Any, asked: Any, what: str) -> None:
    wrong = [(index, one, other) for index, (one, other) in enumerate(zip(ours, asked, strict=True)) if one != other]
    assert not wrong, f"{what}: {len(wrong)} of {len(asked)} differ, such as {wrong[:2]}"


# adapters and other weights


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], dict[str, Path]]:
    """A model of three layers, one of other weights, one of these that lacks a
    tensor of the last layer; and adapters.
    """
    place = tmp_path_factory.mktemp("parts")
    base, other, damaged = (
        write_checkpoint(place / name, tokenizer=True, head_dim=64, seed=seed)
        for name, seed in (("base", 0), ("other", 7), ("damaged", 7))
    )
    for file in damaged.glob("*.safetensors"):
        save_file({name: tensor for name, tensor in load_file(file).items() if "layers.2.mlp.down" not in name}, file)
    return [base, other, damaged], {
        str(i): write_adapter(base, place / f"adapter{i}", i, 8 + 8 * (i % 2)) for i in range(4)
    }


@pytest.fixture(scope="module")
def one(made) -> Iterator[Engine]:
    """What a GPU writes too, see test_adapters_cuda.py."""
    bases, folders = made
    with Engine(bases[0], **ON_CPU, adapters=folders) as engine:
        yield engine


@pytest.fixture(scope="module", params=WAYS)
def several(made, request) -> Iterator[Engine]:
    """With fewer slots than adapters."""
    bases, folders = made
    with opened(bases[0], **ON_GPU | WAYS[request.param], adapters=folders, adapter_slots={8: 1, 16: 2}) as engine:
        told(engine)
        yield engine


def texts(engine: Engine, owners: list[str | None] | None = None) -> list[list[int]]:
    sequences = [engine.open(adapter=owner) for owner in owners or OWNERS]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(30 + i, 50 + i)))
    found = [future.result(60).token_ids for future in [sequence.generate(GREEDY) for sequence in sequences]]
    for sequence in sequences:
        sequence.close()
    engine.flush_cache()
    return found


def test_adapters_lie_in_the_slots_of_all_ranks(one: Engine, several: Engine) -> None:
    info = several.info()
    assert info["adapters"]["executor"] == "fused" and info["adapters"]["slots"] == 3
    assert 0 < info["memory"]["adapters"] < info["adapters"]["slot_bytes"] <= 2 * info["memory"]["adapters"]
    expected = texts(one)
    assert len({*map(tuple, expected)}) > 5
    for number in range(12):  # graphs are captured when a size comes back
        same(texts(several), expected, f"run {number}")
    stats = several.stats().adapters
    print(f"  {stats}", flush=True)
    assert stats["slot_evictions"] > 0 and stats["slots_held"] == 0


def test_adapters_that_have_more_than_pairs(one: Engine, several: Engine, made, tmp_path: Path) -> None:
    """Their steps run without graphs, on all cards alike."""
    (base, *_), _ = made
    kinds: dict[str, dict[str, Any]] = {
        "dora": {"dora": True},
        "ends": {"biases": True, "ends": True},
        "tokens": {"rows": (33, 40, 41)},
        "tables": {"tables": True},
    }
    for number, (name, keys) in enumerate(kinds.items()):
        folder = write_adapter(base, tmp_path / name, number, **keys)
        for engine in (one, several):
            engine.adapters.load(name, folder)
    assert {info.name for info in several.adapters.list() if info.outside} == set(kinds)
    owners = [None, "dora", "0", "ends", "1", "tokens", "tables", "dora"]
    expected = texts(one, owners)
    for number in range(4):
        same(texts(several, owners), expected, f"run {number}")
    same(texts(several), texts(one), "plain ones")


MIXERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "latents and experts": (
        "deepseek v2",
        r"(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|down_proj|mlp\.gate)$",
        WAYS["ranks"],
    ),
    "latents and experts in stages": ("deepseek v2", r"(q_b_proj|experts.*_proj)$", WAYS["stages"]),
    "delta and experts": ("qwen 3.5 moe", r"(in_proj_qkv|in_proj_z|out_proj|q_proj|up_proj)$", WAYS["ranks"]),
    "whole experts": (
        "qwen3 moe",
        r"(q_proj|experts.*_proj)$",
        {"tensor_parallel": 2, "expert_parallel": True, "redundant_experts": 2, "rebalance_every": 5},
    ),
    "short convolutions": ("lfm2", r"(in_proj|out_proj|w2)$", WAYS["ranks"]),
}


@pytest.mark.parametrize("kind", MIXERS)
def test_adapters_of_other_mixers_and_of_experts(kind: str, tmp_path: Path) -> None:
    case, modules, way = MIXERS[kind]
    base = write_tokenizer(write_family(case, tmp_path / "base"))
    folders = {str(i): write_adapter(base, tmp_path / str(i), i, modules=modules) for i in range(4)}
    with Engine(base, **ON_CPU, adapters=folders) as engine:
        expected = texts(engine)
    assert len({*map(tuple, expected)}) > 5
    with opened(base, **ON_GPU | way, adapters=folders, adapter_slots={8: 4}) as engine:
        for number in range(6):
            same(texts(engine), expected, f"{kind} run {number}")


def test_one_adapter_alone_and_many_rows_of_it(one: Engine, several: Engine) -> None:
    for owners in (["1"], ["2"] * 8, [None, "3"]):
        expected = texts(one, owners)
        for number in range(4):
            same(texts(several, owners), expected, f"{owners} run {number}")


def test_names_are_loaded_anew_while_they_are_in_use(one: Engine, several: Engine, made) -> None:
    _, folders = made
    expected = texts(one, ["0", "1"])
    prompt = list(range(30, 50))
    held = several.open(adapter="0")
    held.extend(prompt)
    several.adapters.load("0", folders["1"])
    now = several.open(adapter="0")
    now.extend(list(range(31, 51)))
    found = [sequence.generate(GREEDY) for sequence in (held, now)]
    same([future.result(60).token_ids for future in found], expected, "held and anew")
    for sequence in (held, now):
        sequence.close()
    several.adapters.load("0", folders["0"])
    several.adapters.load("more", folders["2"], pin=True)
    same(texts(several, ["0", "1"]), expected, "as before")
    several.adapters.unload("more")
    assert "more" not in {info.name for info in several.adapters.list()}


def test_sequences_of_many_adapters_come_and_go(one: Engine, several: Engine) -> None:
    def walk(engine: Engine) -> list[list[int]]:
        rng, futures, live = random.Random(3), [], []
        for number in range(40):
            sequence = engine.open(adapter=rng.choice([None, "0", "1", "2", "3"]))
            sequence.extend([rng.randrange(4, 250) for _ in range(rng.randrange(1, 60))])
            live += [sequence, *(sequence.fork(1) if number % 3 == 0 else ())]
            futures += [
                each.generate(SamplingParams(max_tokens=rng.randrange(1, 10), temperature=0, ignore_eos=True))
                for each in live[-2:]
                if each is sequence or number % 3 == 0
            ]
        found = [future.result(60).token_ids for future in futures]
        for sequence in live:
            sequence.close()
        return found

    same(walk(several), walk(one), "walk")


def test_adapters_after_a_sleep(one: Engine, several: Engine) -> None:
    expected = texts(one)
    same(texts(several), expected, "before")
    assert several.sleep() > 0
    several.wake()
    same(texts(several), expected, "after")


def test_other_weights_and_back_on_all_ranks(one: Engine, several: Engine, made) -> None:
    """A damaged checkpoint changes nothing, what runs goes on, and adapters are added
    to the new weights; graphs are captured anew.
    """
    bases, _ = made
    updated(one, several, bases[0], bases[1:])
    for path in (bases[1], bases[0]):
        began = time.monotonic()
        several.update_weights(path)
        print(f"  {path.name} loaded after {time.monotonic() - began:.2f} s", flush=True)
        one.update_weights(path)
        expected = texts(one)
        for number in range(6):
            same(texts(several), expected, f"{path.name} run {number}")


def test_other_weights_while_text_is_written(several: Engine, made) -> None:
    bases, _ = made
    ended = threading.Event()
    found: list[int] = []

    def write_on() -> None:
        while not ended.is_set():
            found.append(len(several.generate("a few words", GREEDY).token_ids))

    writer = threading.Thread(target=write_on)
    writer.start()
    for path in (bases[1], bases[0]) * 2:
        several.update_weights(path)
    ended.set()
    writer.join(60)
    assert found and set(found) == {12}


def scored(engine: Engine) -> np.ndarray:
    """[runs, prompts, tokens], log-probabilities of some first tokens behind each prompt; in the
    last runs as CUDA graphs, of the tokens that follow.
    """
    found = []
    for _ in range(3):
        sequences = [engine.open() for _ in PROMPTS]
        for sequence, prompt in zip(sequences, PROMPTS, strict=True):
            sequence.extend(prompt)
        rows = [sequence.score([[token] for token in range(4, 244, 6)]) for sequence in sequences]
        found.append([[pair[0] for score in row.result(60) for pair in score] for row in rows])
        for sequence in sequences:
            sequence.generate(GREEDY).result(60)
            sequence.close()
        engine.flush_cache()
    return np.array(found, np.float64)


def near(engine: Engine, expected: np.ndarray, bound: float = NEAR) -> None:
    found = scored(engine)
    told(engine)
    middle = expected - expected.mean(-1, keepdims=True)
    errors = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(middle, axis=-1)
    print(f"  errors by run and prompt:\n{errors.round(4)}", flush=True)
    assert np.isfinite(errors).all() and np.median(errors) < bound and errors.max() < 3 * bound, errors.round(
        4
    ).tolist()


def one_card(path: Path, **options: Any) -> tuple[np.ndarray, set[str]]:
    with opened(path, **ON_GPU | {"dtype": "bfloat16"} | options) as engine:
        print(f"  one card: {engine.info()['few_bits']}", flush=True)
        return scored(engine), restored(engine)


def restored(engine: Engine) -> set[str]:
    """Formats that are not kept, and why; whatever the number of projections."""
    return {kept.partition(" projections of ")[2] for kept in engine.info()["few_bits"] if "restored" in kept}


def in_format(name: str, leave: tuple[str, ...] = ()) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        few, _ = write(place, *FORMATS[name], leave=leave, num_hidden_layers=2, **WIDE)
        return few

    return make


def gguf(place: Path) -> Path:
    twin = write_checkpoint(place / "twin", tokenizer=True, num_hidden_layers=2, **WIDE)
    return file_of(twin, "Q4_K")


def mxfp4(place: Path) -> Path:
    keys = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 64,
        "intermediate_size": 256,
        "hidden_size": 256,
        "num_hidden_layers": 2,
    }
    model = reference("GptOssForCausalLM", **keys)
    model.save_pretrained(place / "experts")
    in_mxfp4(place / "experts", model)
    return write_tokenizer(place / "experts")


def scaled(place: Path) -> Path:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    return written(
        place / "scaled",
        scales(WRITERS["compressed-tensors"], [KVScaleFactors(0.002, 0.003)] * 3),
        kv_cache_scheme=scheme,
    )


# few bits and scales: engines are opened beside each other, before their tests come


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "awq": in_format("awq"),
    "gptq, in order": lambda place: without_order(in_format("gptq")(place)),
    "gptq": in_format("gptq"),
    "compressed-tensors": in_format("compressed-tensors"),
    "fp8 blocks": in_format("fp8 blocks"),
    "fp8 outputs": in_format("fp8 outputs"),
    "nf4, some plain": in_format("nf4", ("k_proj.weight", "layers.1.mlp.down_proj.weight")),
    "gguf Q4_K": gguf,
    "experts in mxfp4": mxfp4,
    "plain": lambda place: write_checkpoint(place / "plain", tokenizer=True, num_hidden_layers=2, **WIDE),
    "scales": scaled,
    "mixture": lambda place: write_tokenizer(write_family("qwen 3 moe", place / "mixture")),
    "base": lambda place: write_checkpoint(place / "base", tokenizer=True, head_dim=64),
}
HALF: dict[str, Any] = {"dtype": "bfloat16"}
ENGINES: dict[str, dict[str, Any]] = {
    **{f"{name} / ranks": HALF for name in CHECKPOINTS if name not in ("gptq", "plain", "scales", "mixture", "base")},
    "awq / stages": HALF,
    "gptq / stages": HALF,
    "plain / stages": HALF | {"weights": "int4"},
    "scales / ranks": HALF | {"kv_dtype": "fp8"},
    "scales / stages": HALF | {"kv_dtype": "fp8"},
    "mixture / ranks": {"expert_parallel": True, "redundant_experts": 2, "rebalance_every": 7},
    "base / ranks": {"deterministic": True, "adapter_slots": {16: 4}},
}
FEW_BITS = [key for key in ENGINES if key.partition(" / ")[0] not in ("scales", "mixture", "base")]


class Fleet:
    """keys: of ENGINES. A few are opened at a time."""

    def __init__(self, place: Path, keys: list[str]) -> None:
        self.paths = {
            name: CHECKPOINTS[name](place / f"checkpoint{number}")
            for number, name in enumerate(dict.fromkeys(key.partition(" / ")[0] for key in keys))
        }
        self._pool = ThreadPoolExecutor(4)
        self._opening = {key: self._pool.submit(self._open, key) for key in keys}

    def _open(self, key: str) -> Engine:
        name, _, way = key.partition(" / ")
        began = time.monotonic()
        engine = Engine(self.paths[name], **ON_GPU | ENGINES[key] | WAYS[way])
        print(f"\n{key} opened after {time.monotonic() - began:.1f} s", flush=True)
        return engine

    @contextmanager
    def take(self, key: str) -> Iterator[tuple[Path, Engine]]:
        with self._opening.pop(key).result(200) as engine:
            yield self.paths[key.partition(" / ")[0]], engine

    def close(self) -> None:
        for each in self._opening.values():
            if not each.cancel():
                each.result(200).close()


@pytest.fixture(scope="module")
def fleet(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Of the tests that are asked for."""
    here = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    made = Fleet(tmp_path_factory.mktemp("fleet"), [params["key"] for params in here if "key" in params])
    yield made
    made.close()


@pytest.mark.parametrize("key", FEW_BITS)
def test_few_bits(key: str, fleet: Fleet) -> None:
    """Scores, not texts: each card rounds what it has. Restored weights would give
    them too, so what became of them is asked.
    """
    with fleet.take(key) as (path, engine):
        name, more = key.partition(" / ")[0], {"weights": "int4"} if key.startswith("plain") else {}
        expected, left = one_card(path, **more)
        assert np.abs(expected - expected.mean(-1, keepdims=True)).mean() > 0.1
        assert (more or engine.info()["few_bits"]) and restored(engine) <= left, engine.info()["few_bits"]
        near(engine, expected, ROUNDED.get(name, NEAR))
        if key == "fp8 blocks / ranks":
            other, _ = write(path.parent / "other", *FORMATS["fp8 blocks"], num_hidden_layers=2, seed=3, **WIDE)
            wanted, _ = one_card(other)
            with pytest.raises(AssertionError):
                near(engine, wanted)
            engine.update_weights(other)
            near(engine, wanted)
            engine.update_weights(path)
            near(engine, expected)


@pytest.mark.parametrize("key", ["scales / ranks", "scales / stages"])
def test_scales_of_fp8_keys_and_values(key: str, fleet: Fleet) -> None:
    """So small that large numbers do not fit: without them the scores are others."""
    with fleet.take(key) as (path, engine):
        expected, _ = one_card(path, kv_dtype="fp8")
        assert "from the checkpoint" in engine.info()["kv_scales"]
        near(engine, expected)
        with pytest.raises(AssertionError), opened(path, **ON_GPU | HALF) as plain:
            near(plain, expected)


@pytest.mark.parametrize("key", ["base / ranks"])
def test_bits_with_adapters_do_not_depend_on_the_batch(key: str, fleet: Fleet, made) -> None:
    with fleet.take(key) as (_, engine):
        for name, folder in made[1].items():
            engine.adapters.load(name, folder)
        alone = [texts(engine, [owner])[0] for owner in ("0", "1")]
        same(texts(engine, ["0", "0", "1", None, "2", "3"])[:1], alone[:1], "first")


@pytest.mark.parametrize("key", ["mixture / ranks"])
def test_other_weights_of_whole_experts(key: str, fleet: Fleet, tmp_path: Path) -> None:
    """They lie as at the start then, and go on moving."""
    with fleet.take(key) as (base, two):
        other = shutil.copytree(base, tmp_path / "other")
        for file in other.glob("*.safetensors"):
            save_file(
                {
                    name: tensor.flip(0).contiguous() if "mlp.experts" in name else tensor
                    for name, tensor in load_file(file).items()
                },
                file,
            )

        def written_by(engine: Engine) -> list[list[int]]:
            return [engine.generate(prompt, GREEDY).token_ids for prompt in TEXTS * 2]

        with opened(base, **ON_CPU) as engine:
            for path in (None, other, base):
                if path is not None:
                    engine.update_weights(path)
                    two.update_weights(path)
                expected = written_by(engine)
                same(written_by(two), expected, str(path))
                same(written_by(two), expected, str(path))
        print(f"  {two.stats().rebalanced}", flush=True)


def test_few_bits_that_float32_restores_write_what_the_dense_twin_writes(tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS["awq"], num_hidden_layers=2, **WIDE)
    with opened(whole, **ON_CPU) as engine:
        expected = [engine.generate(prompt, GREEDY).token_ids for prompt in TEXTS]
    with opened(few, **ON_GPU, tensor_parallel=2) as engine:
        assert all("restored" in kept for kept in engine.info()["few_bits"])
        same([engine.generate(prompt, GREEDY).token_ids for prompt in TEXTS], expected, "texts")


def test_inputs_in_the_order_of_their_activations_are_refused_by_name(tmp_path: Path) -> None:
    with (
        pytest.raises((CheckpointError, ConfigError), match="desc_act"),
        Engine(in_format("gptq")(tmp_path), **ON_GPU | HALF, tensor_parallel=2),
    ):
        pass
