"""Who computes the layers of a decoder on this machine, and why nothing faster does: once loaded, and before."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..layers import cpu_kernels
from ..layers.linear_layers import BlockedLinear
from ..layers.mixed_format_linear import kinds_of
from ..quantization.online_quantization import FOUR_BITS, FP8_BLOCK
from .cpu.cpu_support import cpu_refusal
from .gpu.gpu_support import gpu_refusal, gpu_refusal_around_mixer
from .reference.reference_experts import ReferenceExperts

if TYPE_CHECKING:
    from .decoder import Decoder
    from .reference.reference_block import ReferenceBlock

SMALL_MODEL = (
    512 * 2**20
)  # bytes of weights up to which a layout is kept beside a table that is shared, and all are laid together
PRODUCTS = {
    "FixedBatchLinear": "deterministic=True multiplies a fixed number of rows at a time",
    "Int8Linear": "this CPU has no int8 instructions",
    "GroupedLinear": "no compiled product takes its codes on this CPU",
    "AllReduceLinear": "its sums are over ranks",
}  # why a product is not the compiled one, by its class
WHOLE_NUMBERS = {
    "int8": "VNNI",
    **dict.fromkeys((*FOUR_BITS, FP8_BLOCK), "INT4"),
}  # what says whether their compiled products are there


class LayerExecutorChoice(NamedTuple):
    """Who computes something: "fused" (Triton), "compiled" (csrc), "torch".

    why: it is not a faster one; None: this machine has none for this dtype.
    """

    by: str
    why: str | None


def best_executor(device: torch.device, dtype: torch.dtype, weights: str = "auto") -> LayerExecutorChoice:
    """The fastest that this machine has. weights: see `EngineConfig`."""
    if device.type == "cuda":
        triton = importlib.util.find_spec("triton") is not None
        return (
            LayerExecutorChoice("fused", None)
            if triton
            else LayerExecutorChoice("torch", "triton is not installed: pip install 'sgl[cuda]'")
        )
    if device.type != "cpu":
        return LayerExecutorChoice("torch", None)
    if cpu_kernels.kernels is None:
        return LayerExecutorChoice(
            "torch", "the compiled kernels are not there: with a C compiler at hand, install sgl again"
        )
    if dtype not in cpu_kernels.KINDS:
        return LayerExecutorChoice(
            "torch", f"the compiled kernels compute float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
        )
    there = (
        getattr(cpu_kernels.kernels, WHOLE_NUMBERS[weights])
        if weights in WHOLE_NUMBERS
        else cpu_kernels.can_multiply(dtype, device)
    )
    return LayerExecutorChoice("compiled" if there else "torch", None)


def expected_executors(model: Decoder, device: torch.device, weights: str = "auto") -> list[LayerExecutorChoice]:
    """Of each layer, were the model loaded on `device`; it may have no memory itself (device "meta").

    weights: what becomes of them, see `EngineConfig`.
    """
    fastest = best_executor(device, model.dtype, weights)
    if fastest.by == "torch":
        return [fastest] * len(model.layers)
    if fastest.by == "fused":
        return [_fused(block, model.dtype) for block in model.layers]
    whys = [cpu_refusal(block) for block in model.layers]
    return [fastest if why is None else LayerExecutorChoice("torch", why) for why in whys]


def _fused(block: ReferenceBlock, dtype: torch.dtype) -> LayerExecutorChoice:
    """The kernels may take what stands around a mixer that they leave."""
    why = gpu_refusal(block, dtype)
    if why is None:
        return LayerExecutorChoice("fused", None)
    return (
        LayerExecutorChoice("torch", why)
        if gpu_refusal_around_mixer(block, dtype) is not None
        else LayerExecutorChoice("fused", f"torch's operations compute the mixer: {why}")
    )


def executors(model: Decoder) -> list[LayerExecutorChoice]:
    """Of each layer of a sealed model."""
    if model.fused:
        return _unfolded(model, expected_executors(model, torch.device("cuda")))
    claimed = [False] * len(model.layers) if model.step is None else model.step.claimed
    fastest = best_executor(model.device, model.dtype)
    rest = [
        fastest if fastest.by == "torch" else LayerExecutorChoice("torch", _refusal(block)) for block in model.layers
    ]
    return [LayerExecutorChoice("compiled", None) if ours else left for ours, left in zip(claimed, rest, strict=True)]


def _unfolded(model: Decoder, runs: list[LayerExecutorChoice]) -> list[LayerExecutorChoice]:
    """With what few rows of a layer in few bits wait for."""
    if (why := model.execution_plan.small_batch_refusal) is None:
        return runs
    from .gpu.small_batch_support import is_quantized

    told = f"steps of few rows do not fold norms and additions into products of few bits: {why}"
    return [
        LayerExecutorChoice(run.by, told) if run.why is None and is_quantized(block) else run
        for run, block in zip(runs, model.layers, strict=True)
    ]


def capturable(model: Decoder) -> bool:
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
    return cpu_refusal(block) or _products_refusal(block)


def _products_refusal(block: ReferenceBlock) -> str:
    products = [getattr(*place) for place in block.products()]
    kinds = [kind for product in products if not isinstance(product, BlockedLinear) for kind in kinds_of(product)]
    names = dict.fromkeys(PRODUCTS.get(kind, f"products are kept as {kind}") for kind in kinds)
    return "; ".join(names)
