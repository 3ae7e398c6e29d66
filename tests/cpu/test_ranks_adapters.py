"""What each rank has of an adapter: what the rank's weights would have more of, if
the adapter were merged into the checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from family_cases import FAMILIES, write_family
from family_checks import close, logits_of, prompt, reference
from ranks_rig import adapted
from safetensors.torch import load_file, save_file
from test_adapters_experts import CASES as EXPERTS
from test_adapters_extras import CASES as EXTRAS
from test_adapters_extras import GPT, MIXERS, TOLERANCE, trained

from sgl.runtime.adapters.adapter import ABSENT, Adapter
from sgl.runtime.adapters.adapter_sites import AdapterSite, sites_of
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.load_plan import renamed
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.placement.expert_transfer import put, tensors_of
from sgl.runtime.models.spec.model_spec import ModelSpec
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace, load_rank_part
from sgl.runtime.parallel.tp.sharded_adapters import (
    ShardedAdapterPacker,
    adapter_bytes_of_ranks,
    most_adapter_bytes_of_rank,
)
from sgl.runtime.parallel.tp.tensor_parallel_split import refusal
from sgl.runtime.quantization import transform_for

CPU = torch.device("cpu")
KINDS = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "FalconForCausalLM",
    "BloomForCausalLM",
    "GPTBigCodeForCausalLM",
    "Gemma2ForCausalLM",
)
CASES = list({name: case for case, (name, _) in FAMILIES.items() if name in KINDS}.values())


OF_PEFT = {
    case: EXTRAS[case]
    for case in (
        "dora and all",
        "dora with biases",
        "dora of merged",
        "dora transposed",
        "biases of pairs",
        "whole tables",
        "whole embedding, tied",
        "embedding and head alone",
        "embedding, scaled",
        "tokens",
    )
}
OF_PEFT["biases behind cut inputs"] = (
    GPT,
    {"bias": "lora_only", "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
)
OF_PEFT |= {case: MIXERS[case] for case in ("latent", "latent, dora", "mamba 2", "delta", "short convolutions")}
OF_PEFT |= {case: EXPERTS[case] for case in ("all parameters", "shared", "mixtral", "in turn and transposed")}


def pairs_of(model: ModelSpec) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
    generator = torch.Generator().manual_seed(5)
    return {
        module: (
            torch.randn(3, site.inputs, generator=generator),
            torch.randn(size, 3, generator=generator),
            0.5 + number,
        )
        for site in sites_of(model)
        for number, (module, size) in enumerate(zip(site.modules, site.sizes, strict=True))
    }


def merged(
    path: Path, into: Path, model: ModelSpec, pairs: dict[str, tuple[torch.Tensor, torch.Tensor, float]]
) -> Path:
    into.mkdir()
    (into / "config.json").write_text((path / "config.json").read_text())
    tensors, places = load_file(path / "model.safetensors"), {f"{module}.weight" for module in pairs}
    for name, tensor in tensors.items():
        if (module := renamed(name, model, places).removesuffix(".weight")) in pairs and name.endswith(".weight"):
            first, second, scale = pairs[module]
            more = scale * (second @ first)
            tensors[name] = tensor.float() + (more.T if model.names.transposed else more)
    save_file(tensors, into / "model.safetensors")
    return into


def matrix(part: Adapter, site: AdapterSite) -> torch.Tensor:
    """[outputs, inputs] that the part adds to a product's weight."""
    found = torch.zeros(site.outputs, site.inputs)
    if part.places[site.number] != ABSENT:
        first, second = part.pair(site)
        for piece, start, stop in site.runs:
            found[start:stop] = second[:, start:stop].T @ first[piece] * float(part.scales[site.number, piece])
    return found


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_parts_are_those_of_a_merged_checkpoint(case: str, stages: int, tmp_path: Path) -> None:
    path = write_family(case, tmp_path / "base")
    model = open_checkpoint(path).model
    assert refusal(model, 2) is None
    pairs = pairs_of(model)
    other = merged(path, tmp_path / "merged", model, pairs)
    whole = ShardedAdapterPacker(model, stages, 2, torch.float32).pack(pairs)
    parts = [whole, *whole.elsewhere]
    assert len(parts) == 2 * stages and len({part.digest for part in parts}) == 1
    there = []
    for rank, part in enumerate(parts):
        place = RankPlace.of(rank, len(parts), stages)
        base, more = (load_rank_part(open_checkpoint(each), place, torch.float32, CPU) for each in (path, other))
        sites = sites_of(base.config)
        assert sites
        there.append(AdapterSlots(sites, torch.float32, CPU, {8: 2, 16: 1}, grows=False).bytes)
        for site in sites:
            before, after = (
                getattr(getattr(each.layers[site.layer], site.holder), site.name).dense() for each in (base, more)
            )
            close(matrix(part, site), after - before, 1e-4, f"rank {rank}: {site.modules}")
    assert adapter_bytes_of_ranks(model, stages, 2, {8: 2, 16: 1}, 4) == sum(there) > 0
    assert most_adapter_bytes_of_rank(model, stages, 2, {8: 2, 16: 1}, 4) == max(there)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", OF_PEFT)
def test_logits_over_ranks_are_those_of_peft(case: str, tmp_path: Path) -> None:
    (architecture, keys), lora = OF_PEFT[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    tokens, beside = [5, 9, 3, 4, *prompt(320)], prompt(320, 7, 3)
    expected, base = logits_of(trained(model, tmp_path / "adapter", **lora), tokens), logits_of(model, beside)
    (adapter,), found = adapted(tmp_path / "base", 2, [tmp_path / "adapter"], [tokens, beside], [0, -1])
    assert adapter.elsewhere[0].extra_kinds == adapter.extra_kinds
    for ours, theirs in ((found[: len(tokens)], expected), (found[len(tokens) :], base)):
        assert (ours - theirs).abs().max() < 2 * TOLERANCE * theirs.abs().max()


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["all parameters", "shared", "in turn and transposed"])
def test_adapters_of_experts_that_lie_whole_on_ranks_and_move(case: str, tmp_path: Path) -> None:
    """Every rank has the pairs of all experts, wherever these lie; some lie twice."""
    (architecture, keys), lora = EXPERTS[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    tokens, beside = prompt(320), prompt(320, 7, 3)
    expected, base = logits_of(trained(model, tmp_path / "adapter", **lora), tokens), logits_of(model, beside)

    def turned(models: list[Decoder]) -> None:
        """Each rank's second expert lies where the other's did."""
        for block in range(len(models[0].layers)):
            parts = [model.layers[block].ffn for model in models]
            held, first = (
                [list(own) for own in parts[0].spread.held],
                [[tensor.clone() for tensor in tensors_of(part.experts[1])] for part in parts],
            )
            held[0][1], held[1][1] = held[1][1], held[0][1]
            for part, tensors in zip(parts, first[::-1], strict=True):
                put(part.experts[1], tensors)
                part.hold_experts(held)

    for hold_experts in (None, turned):
        _, found = adapted(
            tmp_path / "base",
            2,
            [tmp_path / "adapter"],
            [tokens, beside],
            [0, -1],
            experts=ExpertParallelSplit(2),
            hold_experts=hold_experts,
        )
        for ours, theirs in ((found[: len(tokens)], expected), (found[len(tokens) :], base)):
            assert (ours - theirs).abs().max() < 2 * TOLERANCE * theirs.abs().max()


def test_what_ranks_cannot_tell_of_their_weights_is_refused_by_name(tmp_path: Path) -> None:
    model = reference("LlamaForCausalLM", num_hidden_layers=2)
    model.save_pretrained(tmp_path / "base")
    trained(model, tmp_path / "dora", use_dora=True)
    with pytest.raises(CheckpointError, match=r"lora_magnitude_vector.* is kept in few bits"):
        adapted(tmp_path / "base", 2, [tmp_path / "dora"], [[5]], [0], transform_for("int8", False, CPU))
    trained(model, tmp_path / "ends", target_modules=["lm_head", "embed_tokens"])
    file = tmp_path / "ends" / "adapter_model.safetensors"
    tensors = load_file(file)
    for module, row in (("lm_head", 319), ("model.embed_tokens", 0)):  # the last rank's, and all ranks'
        name = f"base_model.model.{module}.base_layer.weight"
        other = tensors[name].clone()
        other[row] += 1
        save_file(tensors | {name: other}, file)
        with pytest.raises(CheckpointError, match=f"{module}.*own table is another"):
            adapted(tmp_path / "base", 2, [tmp_path / "ends"], [[5]], [0])
