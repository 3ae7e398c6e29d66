"""Which executor computes each layer of a decoder on this machine, and why no faster one: after loading, and before."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from ..layers.linear_layers import BlockedLinear
from ..layers.mixed_format_linear import kinds_of
from .cpu.cpu_expert_structs import ExpertsStruct
from .cpu.cpu_support import cpu_refusal
from .decoder_parts import DecoderParts
from .expected_executors import LayerExecutorChoice, best_cpu_executor, executors_on_cpu
from .gpu.gpu_support import gpu_refusal, gpu_refusal_around_mixer
from .placement.expert_parallel_plan import ExpertParallelPlan
from .reference.reference_block import ReferenceBlock
from .reference.reference_experts import ReferenceExperts

if TYPE_CHECKING:
    from .gpu.gpu_step import PlannedDecoder

SMALL_MODEL = 512 * 2**20  # bytes of weights up to which a layout is kept next to a shared table
PRODUCTS = {
    "FixedBatchLinear": "deterministic=True multiplies a fixed number of rows at a time",
    "Int8Linear": "this CPU has no int8 instructions",
    "GroupedLinear": "no compiled product takes its codes on this CPU",
    "AllReduceLinear": "its sums are over ranks",
}  # why a product is not the compiled one, by its class


def set_expert_placement(block: ReferenceBlock) -> None:
    """On ranks that share a layer's experts out, this rank's view of who has which."""
    if isinstance(block.ffn, ReferenceExperts) and (held := block.ffn.part.held) is not None:
        block.ffn.spread = ExpertParallelPlan(held, block.ffn.part.count, block.ffn.device)


def claim_experts(block: ReferenceBlock) -> None:
    """The compiled kernels compute a sealed layer's experts if they support them."""
    if isinstance(block.ffn, ReferenceExperts):
        block.ffn.compiled = ExpertsStruct.of(block.ffn)


def best_executor(device: torch.device, dtype: torch.dtype, weights: str = "auto") -> LayerExecutorChoice:
    """The fastest executor of this machine. weights: see `EngineConfig`."""
    if device.type == "cuda":
        triton = importlib.util.find_spec("triton") is not None
        return (
            LayerExecutorChoice("fused", None)
            if triton
            else LayerExecutorChoice("torch", "triton is not installed: pip install 'sgl[cuda]'")
        )
    if device.type != "cpu":
        return LayerExecutorChoice("torch", None)
    return best_cpu_executor(str(dtype).removeprefix("torch."), weights)


def expected_executors(model: DecoderParts, device: torch.device, weights: str = "auto") -> list[LayerExecutorChoice]:
    """For each layer, were the model loaded on `device`; the model itself may have no memory (device "meta").

    weights: how they are quantized, see `EngineConfig`.
    """
    if device.type == "cpu":
        return executors_on_cpu(model.config, str(model.dtype).removeprefix("torch."), weights)
    fastest = best_executor(device, model.dtype, weights)
    if fastest.by == "torch":
        return [fastest] * len(model.layers)
    return [_fused(block, model.dtype) for block in model.layers]


def _fused(block: ReferenceBlock, dtype: torch.dtype) -> LayerExecutorChoice:
    """The kernels may run the parts around a mixer that they do not support."""
    why = gpu_refusal(block, dtype)
    if why is None:
        return LayerExecutorChoice("fused", None)
    return (
        LayerExecutorChoice("torch", why)
        if gpu_refusal_around_mixer(block, dtype) is not None
        else LayerExecutorChoice("fused", f"torch's operations compute the mixer: {why}")
    )


def executors(model: PlannedDecoder, compiled: list[bool] | None) -> list[LayerExecutorChoice]:
    """Of each layer of a sealed model. compiled: whether the compiled step runs it; None: it runs none."""
    if model.fused:
        return _unfolded(model, expected_executors(model, torch.device("cuda")))
    claimed = [False] * len(model.layers) if compiled is None else compiled
    fastest = best_executor(model.device, model.dtype)
    rest = [
        fastest if fastest.by == "torch" else LayerExecutorChoice("torch", _refusal(block)) for block in model.layers
    ]
    return [LayerExecutorChoice("compiled", None) if ours else left for ours, left in zip(claimed, rest, strict=True)]


def _unfolded(model: PlannedDecoder, runs: list[LayerExecutorChoice]) -> list[LayerExecutorChoice]:
    """With the reason why small batches of a quantized layer are not fused."""
    if (why := model.execution_plan.small_batch_refusal) is None:
        return runs
    from .gpu.small_batch_support import is_quantized

    reason = f"steps of few rows do not fold norms and additions into products of few bits: {why}"
    return [
        LayerExecutorChoice(run.by, reason) if run.why is None and is_quantized(block) else run
        for run, block in zip(runs, model.layers, strict=True)
    ]


def capturable(model: DecoderParts) -> bool:
    """See `Decoder.capturable`."""
    if not all(layer.mixer is None or layer.mixer.capturable for layer in model.layers):
        return False
    mixtures = [layer for layer in model.layers if isinstance(layer.ffn, ReferenceExperts)]
    return not mixtures or (
        model.fused
        and all(
            None in (gpu_refusal(layer, model.dtype), gpu_refusal_around_mixer(layer, model.dtype))
            for layer in mixtures
        )
    )


def _refusal(block: ReferenceBlock) -> str:
    return cpu_refusal(block.layer, block.gate is not None) or _products_refusal(block)


def _products_refusal(block: ReferenceBlock) -> str:
    products = [getattr(*place) for place in block.products()]
    kinds = [kind for product in products if not isinstance(product, BlockedLinear) for kind in kinds_of(product)]
    names = dict.fromkeys(PRODUCTS.get(kind, f"products are kept as {kind}") for kind in kinds)
    return "; ".join(names)
