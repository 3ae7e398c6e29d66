"""Weights that a checkpoint brings in few bits, over ranks: each has its part of
the same numbers, whatever their format.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from family_checks import close, logits_of, prompt, reference
from gguf_convert import write_twin
from loaded_models import load_share
from ranks_rig import CPU, steps_of_ranks
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from test_experts import in_mxfp4
from test_quantized_loading import FORMATS, WEIGHTS, needs_product, restored, write

from sgl.runtime.adapters.adapter_sites import sites_of
from sgl.runtime.errors import CheckpointError
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

__all__ = ["restored"]


def without_order(path: Path) -> Path:
    """A checkpoint of GPTQ whose inputs stand in order."""
    save_file(
        {name: tensor for name, tensor in load_file(path / WEIGHTS).items() if not name.endswith("g_idx")},
        path / WEIGHTS,
    )
    return path


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "gptq"])
@pytest.mark.parametrize("leave", [(), ("k_proj.weight", "layers.1.mlp.down_proj.weight")])
def test_parts_are_those_of_the_restored_twin(
    name: str, leave: tuple[str, ...], tmp_path: Path, restored: None
) -> None:
    few, whole = write(tmp_path, *FORMATS[name], leave=leave)
    for rank in range(2):
        ours, theirs = (load_share(path, torch.float32, CPU, TensorParallelSplit(rank, 2)) for path in (few, whole))
        sites = sites_of(ours.config)
        assert len(sites) == 12 and ours.few_bits and not theirs.few_bits
        for site in sites:
            found, expected = (
                getattr(getattr(model.layers[site.layer], site.holder), site.name).dense() for model in (ours, theirs)
            )
            assert torch.equal(found, expected), (rank, site.modules)


@pytest.mark.few(2)
@needs_product
@pytest.mark.parametrize("name", FORMATS)
def test_two_ranks_compute_what_one_computes(name: str, tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS[name])
    few, rounds = (
        without_order(few) if name == "gptq" else few,
        name in ("gptq", "awq", "compressed-tensors", "int8", "torchao"),
    )  # each rank its own states
    work = [(Row(list(range(40, 60))), 20)]
    found, expected = (
        steps_of_ranks(few, 2, [work])[0],
        Rig(few if name == "gptq" or not rounds else whole).step([(Row(list(range(40, 60))), 20)], every_row=True),
    )
    assert (found - expected).norm() < (0.06 if rounds else 1e-4) * expected.norm()


def test_experts_in_mxfp4(tmp_path: Path, restored: None) -> None:
    keys = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "hidden_size": 64,
    }
    reference_ = reference("GptOssForCausalLM", **keys)
    reference_.save_pretrained(tmp_path)
    in_mxfp4(tmp_path, reference_)
    tokens = prompt(320)
    found = steps_of_ranks(tmp_path, 2, [[(Row(tokens), len(tokens))]])[0]
    close(found, logits_of(reference_, tokens), 2e-5, "two ranks")


def test_a_gguf_file(tmp_path: Path) -> None:
    twin = write_checkpoint(tmp_path / "twin", tokenizer=True, hidden_size=256, intermediate_size=512)
    file, work = write_twin(twin, tmp_path / "model.gguf", "llama", "Q4_K"), [(Row(list(range(40, 60))), 20)]
    expected = Rig(file).step(work, every_row=True)
    found = steps_of_ranks(file, 2, [[(Row(list(range(40, 60))), 20)]])[0]
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_inputs_in_the_order_of_their_activations_are_refused_by_name(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["gptq"])
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.0\.self_attn\.o_proj in GPTQ.*desc_act.*take fewer ranks"
    ):
        load_share(few, torch.float32, CPU, TensorParallelSplit(0, 2))


def test_sizes_that_are_not_the_model_s_are_refused(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["fp8 outputs"])
    edit_json(few / "config.json", intermediate_size=128)
    with pytest.raises(
        CheckpointError,
        match=r"\[64, 96\].*config.json asks for 128 inputs|\[96, 64\].*config.json asks for 128 outputs",
    ):
        load_share(few, torch.float32, CPU, TensorParallelSplit(0, 2))


def test_any_inputs_are_those_of_the_whole() -> None:
    draw = torch.Generator().manual_seed(2)
    for group in (16, 32, 48, 64, 200):
        groups = -(-192 // group)
        whole = QuantizedWeight(
            torch.randint(0, 16, (6, 192), generator=draw).byte(),
            torch.rand(6, groups, generator=draw),
            group,
            zero=torch.rand(6, groups, generator=draw),
            offset=torch.rand(6, groups, generator=draw),
        )
        for start, stop in ((0, 96), (96, 192), (48, 112), (160, 192), (16, 32)):
            inputs = torch.arange(start, stop)
            assert torch.equal(whole.of_inputs(inputs).dense(), whole.dense()[:, inputs])
        inputs = torch.cat([torch.arange(0, 48), torch.arange(144, 192)])
        assert torch.equal(whole.of_inputs(inputs).dense(), whole.dense()[:, inputs])
        if group < 192:
            with pytest.raises(ValueError, match=f"groups of {group} inputs"):
                whole.of_inputs(torch.arange(8, 40))
