"""The cache of packed weights: a second start computes bit by bit what the first one did, and packs nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from family_cases import write_family
from gguf_convert import write_twin
from packed_cache_rig import FOUND, entry_of, load, logits, same, start, use_cache, without
from test_kv_scales import LAYERS, WRITERS, scales, written
from test_quantized_loading import FORMATS, write

from sgl.commands.doctor_command import CHECKS
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading.packed_cache import cache_key, entry_file, known_sources, packed_weights
from sgl.runtime.loading.packed_cache.background_writer import PackedWeightsWriter
from sgl.runtime.models.decoder import Decoder

pytestmark = pytest.mark.skipif(
    not cpu_kernels.kernels or not cpu_kernels.kernels.INT4, reason="needs the kernels that weights are packed for"
)
BFLOAT16 = torch.bfloat16
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_cache(tmp_path / "cache", monkeypatch)


def as_q4_k_m(name: str) -> str:
    return "Q6_K" if "attn_v" in name or "token_embd" in name else "Q4_K"


def kinds(model: Decoder) -> list[str]:
    return [type(getattr(*place)).__name__ for part in model.parts for place in part.products()]


def check(path: Path, *more: Any) -> Decoder:
    """The second start is the first one, and has its weights from the cache."""
    first, said = start(path, *more)
    assert said.startswith("written to the cache"), said
    second, said = start(path, *more)
    assert said.startswith(FOUND), said
    assert same(path, logits(path, first), second)
    for name in ("few_bits", "kv_scales", "weight_bytes", "parameter_count"):
        assert getattr(first, name) == getattr(second, name)
    assert kinds(first) == kinds(second) and first.config == second.config
    return second


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("family, keys", [("llama", {}), ("qwen2", {"tie_word_embeddings": True}), ("phi3", {})])
@pytest.mark.parametrize("weights", ["auto", "int8", "int4", "mxfp4"])
def test_dense_checkpoints(
    family: str, keys: dict[str, Any], dtype: torch.dtype, weights: str, tmp_path: Path, cache: Path
) -> None:
    check(write_checkpoint(tmp_path / "m", family, **keys), dtype, weights)


@pytest.mark.parametrize("case", ["gpt2", "bloom", "opt", "gemma2", "cohere", "qwen3 moe", "gpt-oss", "phimoe"])
def test_families(case: str, tmp_path: Path, cache: Path) -> None:
    check(write_family(case, tmp_path / "m"))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("leave", [(), ("k_proj.weight", "layers.1.mlp.down_proj.weight")])
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
def test_quantized_checkpoints(
    name: str, leave: tuple[str, ...], dtype: torch.dtype, tmp_path: Path, cache: Path
) -> None:
    few, _ = write(tmp_path, *FORMATS[name], leave=leave)
    check(few, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_K", "mixed"])
def test_gguf(kind: str, dtype: torch.dtype, tmp_path: Path, cache: Path) -> None:
    """mixed: values and the table in another format than the rest, as Q4_K_M."""
    origin = write_checkpoint(tmp_path / "m", tie_word_embeddings=True, **SIZES)
    path = write_twin(origin, tmp_path / "m.gguf", "llama", as_q4_k_m if kind == "mixed" else kind)
    model = check(path, dtype)
    assert ("MixedFormatBlockedLinear" in kinds(model)) == (kind == "mixed")


@pytest.mark.parametrize("pair", [LAYERS, LAYERS[:2]])
def test_scales_of_keys_and_values(pair: list[Any], tmp_path: Path, cache: Path) -> None:
    model = check(written(tmp_path / "m", scales(WRITERS["attn"], pair)))
    assert model.kv_scales == (*pair, None)[:3]


def test_nothing_is_packed_and_weights_follow_each_other_in_the_order_of_a_step(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "m", **SIZES)
    start(path)
    monkeypatch.setattr("sgl.runtime.layers.linear_layers.in_blocks", None)
    model, said = start(path)
    assert said.startswith(FOUND)
    places = [getattr(*place).weight.data_ptr() for layer in model.layers for place in layer.products()]
    assert places == sorted(places) and not any(place % entry_file.LINE for place in places)


def test_an_engine_tells_and_its_texts_are_the_same(tiny: Path, cache: Path) -> None:
    found, told, infos = list[str](), list[str](), list[dict[str, Any]]()
    for _ in range(2):
        with Engine(tiny, device="cpu", kv_tokens=512) as engine:
            done = engine.generate("The quick brown", SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
            found.append(done.text)
            told.append(engine.info()["loading"]["cache"])
        infos.append(engine.info())
        told.append(infos[-1]["loading"]["cache"])
    assert found[0] == found[1]
    assert told[0].startswith("written") and told[1].startswith("written to the cache")
    assert told[2].startswith(FOUND) and told[3] == told[2]
    assert all(infos[0][name] == infos[1][name] for name in ("notes", "few_bits", "layers", "slower", "kv_scales"))


def test_other_weights_come_from_their_files(tiny: Path, other_weights: list[Path], cache: Path) -> None:
    texts = []
    for origin, update in ((other_weights[0], None), (tiny, other_weights[0])):
        for _ in range(2):
            with Engine(origin, device="cpu", kv_tokens=512) as engine:
                if update is not None:
                    engine.update_weights(update)
                params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
                texts.append(engine.generate("The quick brown", params).text)
    assert len(set(texts)) == 1


def test_a_stopped_writer_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    model, packed = load(path)
    writer = PackedWeightsWriter.started(packed, model)
    assert writer is not None
    writer.stop()
    assert packed.outcome.startswith("not written") and not [*cache.glob("*")]
    assert start(path)[1].startswith("written to the cache")


def test_it_is_off(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path / "m")
    start(path)
    monkeypatch.setenv("SGL_CACHE", "0")
    assert start(path)[1] == "not used: SGL_CACHE=0"


def test_small_models_and_models_of_now_are_left_out(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(known_sources, "GRAIN", 1e9)
        assert "changed just before it was read" in start(path)[1]
    monkeypatch.setattr(packed_weights, "LEAST", 1e9)
    assert "takes no time" in start(path)[1] and not [*cache.glob("*")]


def test_a_file_that_is_written_over_in_place(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same size, path, inode and mtime: another model."""
    path, other = (write_checkpoint(tmp_path / str(seed), seed=seed) for seed in range(2))
    start(path)
    (file,) = path.glob("*.safetensors")
    before = file.stat()
    file.write_bytes((other / file.name).read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_ino, after.st_mtime_ns) == (before.st_size, before.st_ino, before.st_mtime_ns)
    model, said = start(path)
    assert said.startswith("written to the cache") and same(other, without(other, monkeypatch), model)


def test_a_copy_of_the_file_uses_the_same_entry_from_its_second_start_on(tmp_path: Path, cache: Path) -> None:
    path, copy = (write_checkpoint(tmp_path / name) for name in ("a", "b"))
    start(path)
    assert start(copy)[1] == "in the cache already" and start(copy)[1].startswith(FOUND)
    assert entry_of(cache)


@pytest.mark.parametrize("change", ["dtype", "weights", "machine", "code", "context", "config"])
def test_what_an_entry_depends_on(change: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path / "m")
    start(path)
    dtype, weights = (BFLOAT16 if change == "dtype" else torch.float32), ("int8" if change == "weights" else "auto")
    if change in ("machine", "code"):
        monkeypatch.setattr(cache_key, {"machine": "machine", "code": "code_digest"}[change], lambda: "another")
    if change == "config":
        config = path / "config.json"
        config.write_text(config.read_text().replace("{", '{"another": 1,', 1))
    options = dtype, weights, 64 if change == "context" else None
    assert start(path, *options)[1].startswith(FOUND) == (change == "context")
    assert start(path, *options)[1].startswith(FOUND)


def test_what_the_packing_code_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed module is another digest."""
    for room in cache_key.DECIDING:
        (tmp_path / room).mkdir()
    monkeypatch.setattr(cache_key, "RUNTIME", tmp_path)
    digest = cache_key.code_digest.__wrapped__
    found = [digest()]
    for text in ("a = 1", "a = 2", "b = 2"):
        (tmp_path / "layers" / "in_blocks.py").write_text(text)
        found.append(digest())
    assert len(set(found)) == 4


def test_what_is_not_stored(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path / "m")
    monkeypatch.setattr("sgl.runtime.layers.linear_layers.BlockedLinear.supports", staticmethod(lambda _: False))
    assert "TransposedLinear, which is not stored" in start(path)[1]


def test_doctor_tells_how_much_there_is(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(write_checkpoint(tmp_path / "m"))
    assert [*CHECKS["cache"]()] == [f"packed weights in {cache}: 2 files, 0.00 of 20 GB"]
    monkeypatch.setenv("SGL_CACHE", "0")
    assert next(CHECKS["cache"]()).endswith("GB; off by SGL_CACHE=0")
    monkeypatch.setenv("SGL_CACHE_GB", "many")
    assert next(CHECKS["cache"]()) == "packed weights are not kept: SGL_CACHE_GB='many' is no number of gigabytes"
