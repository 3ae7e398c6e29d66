"""Scales of keys and values that a checkpoint has: found under every name, told,
used with kv_dtype="fp8" and by nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import CheckpointError
from sgl.runtime.executor.ranks.cpu_rank_worker import RankWorker
from sgl.runtime.layers.float8_reference import KVScaleFactors
from sgl.runtime.loading import load_model
from sgl.runtime.parallel.workers.rank_weights import RankWeights
from sgl.runtime.parallel.workers.worker_channel import RankKVOptions, RankStart

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
WEIGHTS = "model.safetensors"
LAYERS = [KVScaleFactors(0.5, 0.25), KVScaleFactors(1.5, 0.75), KVScaleFactors(0.125, 2.0)]
WRITERS = {
    "compressed-tensors": ("k_scale", "v_scale"),
    "ModelOpt": ("k_proj.k_scale", "v_proj.v_scale"),
    "merged": ("qkv_proj.k_scale", "qkv_proj.v_scale"),
    "attn": ("attn.k_scale", "attn.v_scale"),
    "cache": ("k_cache.scale", "v_cache.scale"),
}


def scales(
    names: tuple[str, str],
    layers: list[KVScaleFactors],
    shape: tuple[int, ...] = (1,),
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    return {
        f"model.layers.{index}.self_attn.{name}": torch.full(shape, scale, dtype=dtype)
        for index, each in enumerate(layers)
        for name, scale in zip(names, each, strict=True)
    }


def written(folder: Path, more: dict[str, Tensor], seed: int = 0, **keys: Any) -> Path:
    write_checkpoint(folder, seed=seed, tokenizer=True)
    save_file(load_file(folder / WEIGHTS) | more, folder / WEIGHTS)
    if keys:
        edit_json(
            folder / "config.json",
            quantization_config={
                "quant_method": "compressed-tensors",
                "quantization_status": "compressed",
                "config_groups": {},
                **keys,
            },
        )
    return folder


def opened(path: Path, **options: Any) -> Engine:
    return Engine(path, **{"device": "cpu", "dtype": "float32", "kv_tokens": 1024, "kv_dtype": "fp8"} | options)


def used(engine: Engine) -> list[KVScaleFactors]:
    return list(engine._core.runner.attention.pool.scales)


@pytest.mark.parametrize("writer", WRITERS)
def test_names_of_every_writer(tmp_path: Path, writer: str) -> None:
    shape, dtype = ((), torch.bfloat16) if writer == "ModelOpt" else ((1,), torch.float32)
    model = load_model(written(tmp_path / "m", scales(WRITERS[writer], LAYERS, shape, dtype)))
    assert model.kv_scales == tuple(LAYERS)


def test_one_scale_for_both_and_layers_without(tmp_path: Path) -> None:
    path = written(tmp_path / "m", {"model.layers.1.self_attn.kv_scale": torch.tensor(0.5)})
    assert load_model(path).kv_scales == (None, KVScaleFactors(0.5, 0.5), None)
    with opened(path) as engine:
        assert used(engine) == [(1, 1), (0.5, 0.5), (1, 1)]
        assert engine.info()["kv_scales"] == "from the checkpoint: keys 0.5 to 1, values 0.5 to 1"


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    return written(
        tmp_path_factory.mktemp("scaled") / "m", scales(WRITERS["compressed-tensors"], LAYERS), kv_cache_scheme=scheme
    )


@pytest.mark.parametrize("attention", ["cpu", "torch_native"])
def test_an_engine_uses_them_and_the_text_stays(scaled: Path, attention: str) -> None:
    """Scales that are powers of two change no bits of what is stored but at the ends of float8's range."""
    with opened(scaled, attention=attention) as engine, opened(scaled, kv_dtype="auto") as plain:
        assert used(engine) == LAYERS
        assert engine.info()["kv_scales"] == "from the checkpoint: keys 0.125 to 1.5, values 0.25 to 2"
        assert plain.info()["kv_scales"] is None and used(plain) == [KVScaleFactors()] * 3
        for info in (engine.info(), plain.info()):
            assert (
                "the checkpoint has scales for keys and values in float8: kv_dtype='fp8' uses them, no other "
                "kv_dtype does" in info["notes"]
            )
        tokens = [list(one.generate("The quick brown fox", GREEDY).token_ids) for one in (engine, plain)]
        assert tokens[0][:3] == tokens[1][:3]


@pytest.mark.parametrize("stages", [1, 2])
def test_ranks_divide_by_those_of_their_layers(scaled: Path, tmp_path: Path, stages: int) -> None:
    """And by others once these are loaded."""
    begin = RankStart(
        1, 2, "", str(scaled), torch.float32, torch.device("cpu"), 1, None, "auto", None, "auto", False, stages
    )
    part, room = RankWeights(begin, None), RankKVOptions(64, torch.float8_e4m3fn, "auto", 1, 4, 64, False)
    follower = RankWorker(part, part.load())
    follower.make_room(room)

    def used() -> list[KVScaleFactors]:
        layout = follower.model.config.attention
        return [layout.scales(follower._pool, layer) for layer in layout.places]

    said = load_model(scaled).kv_scales
    assert used() == list(said[-len(used()) :]) and len(used()) == (3 if stages == 1 else len(follower.model.layers))
    follower.plan(written(tmp_path / "m", scales(WRITERS["attn"], [KVScaleFactors(4.0, 3.0)] * 3)))
    follower.fill()
    assert set(used()) == {KVScaleFactors(4.0, 3.0)}


def test_other_weights_bring_their_own(scaled: Path, tmp_path: Path) -> None:
    without = written(tmp_path / "m", {}, seed=1)
    with opened(without) as engine:
        expected = engine.generate("The quick brown fox", GREEDY).token_ids
    with opened(scaled) as engine:
        before = engine.generate("The quick brown fox", GREEDY).token_ids
        engine.update_weights(without)
        assert (
            used(engine) == [KVScaleFactors()] * 3
            and engine.generate("The quick brown fox", GREEDY).token_ids == expected
        )
        assert engine.info()["kv_scales"] == "1 in every layer"
        engine.update_weights(load_file(scaled / WEIGHTS))
        assert used(engine) == LAYERS and engine.generate("The quick brown fox", GREEDY).token_ids == before
        bad = load_file(scaled / WEIGHTS) | {"model.layers.2.self_attn.v_scale": torch.zeros(1)}
        engine.update_weights(scaled)
        with pytest.raises(
            CheckpointError,
            match=r"layers\.2\.self_attn: the scales of keys and values are 0\.125 and 0\.0, not positive",
        ):
            engine.update_weights(bad)
        assert used(engine) == LAYERS and engine.generate("The quick brown fox", GREEDY).token_ids == before


@pytest.mark.parametrize(
    "keys",
    [
        {"kv_cache_scheme": {"num_bits": 8, "type": "int"}},
        {"kv_cache_scheme": {"num_bits": 4, "type": "float"}},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"},
    ],
    ids=str,
)
def test_scales_of_another_kind_are_told_and_left(tmp_path: Path, keys: dict[str, Any]) -> None:
    path = written(tmp_path / "m", scales(WRITERS["ModelOpt"], LAYERS), **keys)
    with opened(path) as engine:
        assert used(engine) == [KVScaleFactors()] * 3
        (note,) = (note for note in engine.info()["notes"] if "scales" in note)
        assert note.startswith("the checkpoint's scales for keys and values are not used (kv_cache_") and note.endswith(
            "kv_dtype='fp8' takes 1"
        )


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            scales(WRITERS["ModelOpt"], LAYERS, (2,)),
            r"layers\.0\.self_attn\.k_proj\.k_scale .*holds several scales.*leave kv_dtype at 'auto'",
        ),
        (
            scales(WRITERS["ModelOpt"], [KVScaleFactors(float("nan"), 1.0)]),
            r"layers\.0\.self_attn: the scales of keys and values are nan and 1\.0",
        ),
        ({"model.layers.1.self_attn.k_scale": torch.ones(1)}, "layer 1 has k_scale without its partner"),
        (
            {f"model.layers.1.self_attn.{name}": torch.ones(1).long() for name in ("k_scale", "v_scale")},
            "k_scale .*must be F32",
        ),
    ],
    ids=["several", "nan", "alone", "whole numbers"],
)
def test_scales_that_cannot_be_are_errors_only_where_they_are_used(
    tmp_path: Path, wrong: dict[str, Tensor], message: str
) -> None:
    path = written(tmp_path / "m", wrong)
    with pytest.raises(CheckpointError, match=message):
        opened(path)
    with opened(path, kv_dtype="auto") as engine:
        assert len(engine.generate("x", GREEDY).token_ids) == 8
