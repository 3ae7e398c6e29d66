"""MLX' checkpoints through the engine: embeddings and all projections in few bits, some with bits of their own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from family_checks import reference
from ranks_rig import CPU
from safetensors.torch import load_file, save_file
from test_quantized_loading import WEIGHTS, logits, needs_product, restored
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from loaded_models import load_share
from test_readers_gptq import stream

from sgl.runtime import Engine
from sgl.runtime.adapters.adapter_sites import sites_of
from sgl.runtime.loading import load_model
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit

__all__ = ["restored"]
GROUP, EXPERT = 32, r"experts\.\d+\."


def write(path: Path, key: str, **keys: Any) -> tuple[Path, Path]:
    """A checkpoint and its dense twin. key: under which its configuration says it."""
    few, whole = (
        write_checkpoint(path / name, tokenizer=True, num_hidden_layers=2, **keys) for name in ("few", "whole")
    )
    return quantised(few, whole, key)


def quantised(few: Path, whole: Path, key: str) -> tuple[Path, Path]:
    tensors, generator, says = (
        load_file(few / WEIGHTS),
        torch.Generator().manual_seed(1),
        dict[str, Any](group_size=GROUP, bits=4),
    )
    dense = dict(tensors)
    for name, weight in dense.items():
        if weight.dim() == 2:
            module, bits = name.removesuffix(".weight"), 6 if "down_proj" in name else 4
            if bits != 4:
                says[re.sub(EXPERT, "switch_mlp.", module)] = {"group_size": GROUP, "bits": bits}
            codes = torch.randint(0, 2**bits, weight.shape, generator=generator)
            scales, biases = (
                (torch.rand(len(weight), weight.shape[1] // GROUP, generator=generator) * size).bfloat16()
                for size in (0.6 / 2**bits, -0.6)
            )
            words = torch.tensor([stream(row, bits) for row in codes.tolist()], dtype=torch.int32).view(torch.uint32)
            tensors |= {name: words, f"{module}.scales": scales, f"{module}.biases": biases}
            dense[name] = codes * scales.float().repeat_interleave(GROUP, 1) + biases.float().repeat_interleave(
                GROUP, 1
            )
    save_file(together(tensors), few / WEIGHTS, {"format": "mlx"})
    save_file(dense, whole / WEIGHTS)
    config = json.loads((few / "config.json").read_text())
    (few / "config.json").write_text(json.dumps({**config, **dict.fromkeys(key.split(), says)}))
    return few, whole


def together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the matrices of all experts in one tensor each."""
    found: dict[str, list[Tensor]] = {}
    for name in sorted(tensors, key=lambda name: [int(part) if part.isdecimal() else -1 for part in name.split(".")]):
        found.setdefault(re.sub(EXPERT, "switch_mlp.", name), []).append(tensors[name])
    return {name: torch.stack(parts) if len(parts) > 1 else parts[0] for name, parts in found.items()}


@pytest.mark.parametrize("key", ["quantization", "quantization quantization_config"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_the_restored_twin(key: str, tied: bool, tmp_path: Path, restored: None) -> None:
    few, whole = write(tmp_path, key, tie_word_embeddings=tied)
    assert torch.equal(logits(few), logits(whole)) and torch.equal(
        logits(few, torch.bfloat16), logits(whole, torch.bfloat16)
    )
    ours, theirs = (load_share(path, torch.float32, CPU, TensorParallelSplit(1, 2)) for path in (few, whole))
    for site in sites_of(ours.config):
        found, expected = (
            getattr(getattr(model.layers[site.layer], site.holder), site.name).dense() for model in (ours, theirs)
        )
        assert torch.equal(found, expected), site.modules


def test_experts_that_lie_in_one_tensor(tmp_path: Path, restored: None) -> None:
    keys = {
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 1,
    }
    for name in ("few", "whole"):
        reference("Qwen2MoeForCausalLM", **keys).save_pretrained(tmp_path / name)
    few, whole = quantised(tmp_path / "few", tmp_path / "whole", "quantization")
    assert not any("experts." in name for name in load_file(few / WEIGHTS)) and torch.equal(logits(few), logits(whole))


@needs_product
def test_they_stay_in_few_bits(tmp_path: Path) -> None:
    few, whole = write(tmp_path, "quantization")
    told = {str(each) for each in load_model(few).few_bits}
    assert told == {
        "7 projections of MLX, 4 bits, groups of 32: Int4BlockedLinear",
        "2 projections of MLX, 6 bits, groups of 32: Int8GroupedLinear",
    }
    assert (logits(few) - logits(whole)).norm() < 0.06 * logits(whole).norm()
    with Engine(few, device="cpu", dtype="bfloat16", kv_tokens=256, strict=True) as engine:
        assert (
            len(engine.generate("Once", max_tokens=8, ignore_eos=True).token_ids) == 8 and not engine.info()["slower"]
        )
