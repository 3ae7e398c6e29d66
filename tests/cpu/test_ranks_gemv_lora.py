"""Single rows with an adapter over two ranks, kernels interpreted: products that send their parts
themselves add the rank's part of the pair before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from family_cases import write_family
from family_checks import close, prompt
from rank_threads import PostingRanks, TurnRanks, Turns
from rig import Rig, Row
from test_ranks_adapters import merged, pairs_of
from test_ranks_fused import steps_of_ranks

from sgl.runtime.adapters.adapted_model import AdaptedModel
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.adapters.choose_adapter_kernels import adapted_sites, adapter_products_for
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu.gemv_layers import FullyFusedLayer, GemvLayer
from sgl.runtime.parallel.tp.sharded_adapters import ShardedAdapterPacker

CPU = torch.device("cpu")


@pytest.mark.few(1)
@pytest.mark.parametrize("case, posting", [("llama", True), ("llama", False), ("qwen2", True), ("gpt_neox", True)])
def test_logits_are_those_of_a_merged_checkpoint(
    case: str, posting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where sums are taken at once; the last family has two branches whose sums would come between."""
    path, made = write_family(case, tmp_path / "base", num_hidden_layers=2), []
    model = open_checkpoint(path).model
    pairs = {module: (first * 0.1, second * 0.1, scale) for module, (first, second, scale) in pairs_of(model).items()}
    whole = ShardedAdapterPacker(model, 1, 2, torch.float32).pack(pairs)
    row = Row(prompt(model.vocab_size)[:6])
    work = [[(row, 4)], [(row, 1)], [(row, 1)]]
    expected = [
        Rig(merged(path, tmp_path / "merged", model, pairs), attention="torch_native").step(
            [(Row(row.tokens), 6)], every_row=True
        )
    ]
    plain = Rig(path, attention="torch_native").step([(Row(row.tokens), 6)], every_row=True)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1)
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))
    monkeypatch.setattr(checks.FusedRig, "adapters", [0])
    PostingRanks.patch(monkeypatch)

    def meet(rank: int, turns: Turns) -> TurnRanks:
        made.append((PostingRanks if posting else TurnRanks)(rank, turns))
        return made[-1]

    def lay_in(model: Any, rank: int, number: int) -> None:
        if number == 0:
            sites = adapted_sites(model, False)
            slots = AdapterSlots(sites, torch.float32, CPU, {8: 1}, False)
            model.adapted = AdaptedModel(model, sites, adapter_products_for(model, slots, sites, False))
            slots.mirror([8], 0, (whole, *whole.elsewhere)[rank])

    found, model = steps_of_ranks(path, work, before=lay_in, meet=meet)
    close(torch.cat(found).float(), expected[0], 1e-4, case)
    assert (expected[0] - plain).abs().max() > 0.05
    layers = model.adapted._model(False, False).execution_plan.alone
    assert all(isinstance(layer, GemvLayer) for layer in layers) and not any(
        isinstance(layer, FullyFusedLayer) for layer in layers
    )
    if posting:
        assert [ranks.posts for ranks in made] == [0 if case == "gpt_neox" else 2 * 2 * len(layers)] * 2
