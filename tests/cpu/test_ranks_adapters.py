"""What each rank has of an adapter: what the rank's weights would have more of, if the adapter were merged into the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from family_cases import FAMILIES, write_family
from family_checks import close
from safetensors.torch import load_file, save_file

from sgl.runtime.adapters.adapter import ABSENT, Adapter
from sgl.runtime.adapters.sites import Site, sites_of
from sgl.runtime.adapters.slots import Slots
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.plan import renamed
from sgl.runtime.models.spec import Model
from sgl.runtime.parallel.adapter_parts import PartsPacking, bytes_of_ranks, most_of_a_rank
from sgl.runtime.parallel.split import refusal
from sgl.runtime.parallel.stages import Place, load_part

CPU = torch.device("cpu")
KINDS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "FalconForCausalLM", "BloomForCausalLM", "GPTBigCodeForCausalLM", "Gemma2ForCausalLM")
CASES = list({name: case for case, (name, _) in FAMILIES.items() if name in KINDS}.values())


def pairs_of(model: Model) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
    generator = torch.Generator().manual_seed(5)
    return {
        module: (torch.randn(3, site.inputs, generator=generator), torch.randn(size, 3, generator=generator), 0.5 + number)
        for site in sites_of(model) for number, (module, size) in enumerate(zip(site.modules, site.sizes, strict=True))
    }  # fmt: skip


def merged(path: Path, into: Path, model: Model, pairs: dict[str, tuple[torch.Tensor, torch.Tensor, float]]) -> Path:
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


def matrix(part: Adapter, site: Site) -> torch.Tensor:
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
    whole = PartsPacking(model, stages, 2, torch.float32).pack(pairs)
    parts = [whole, *whole.elsewhere]
    assert len(parts) == 2 * stages and len({part.digest for part in parts}) == 1
    there = []
    for rank, part in enumerate(parts):
        place = Place.of(rank, len(parts), stages)
        base, more = (load_part(open_checkpoint(each), place, torch.float32, CPU) for each in (path, other))
        sites = sites_of(base.config)
        assert sites
        there.append(Slots(sites, torch.float32, CPU, {8: 2, 16: 1}, grows=False).bytes)
        for site in sites:
            before, after = (getattr(getattr(each.layers[site.layer], site.holder), site.name).dense() for each in (base, more))
            close(matrix(part, site), after - before, 1e-4, f"rank {rank}: {site.modules}")
    assert bytes_of_ranks(model, stages, 2, {8: 2, 16: 1}, 4) == sum(there) > 0
    assert most_of_a_rank(model, stages, 2, {8: 2, 16: 1}, 4) == max(there)
