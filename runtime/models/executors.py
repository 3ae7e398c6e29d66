"""Who computes the layers of a decoder on this machine, and why nothing faster does: once loaded, and before."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..layers import cpu
from ..layers.linear import BlockedLinear
from ..layers.stacked import kinds_of
from ..quantization.forms import FOUR_BITS, FP8_BLOCK
from .claims import compiled_refusal
from .claims_gpu import around_refusal, fused_refusal
from .experts import ExpertsPart

if TYPE_CHECKING:
    from .block import Block
    from .decoder import Decoder

SMALL_MODEL = 512 * 2**20  # bytes of weights up to which a layout is kept beside a table that is shared, and all are laid together
PRODUCTS = {
    "FixedRowsLinear": "deterministic=True multiplies a fixed number of rows at a time",
    "Int8Linear": "this CPU has no int8 instructions",
    "GroupedLinear": "no compiled product takes its codes on this CPU",
    "Summed": "its sums are over ranks",
}  # why a product is not the compiled one, by its class
WHOLE_NUMBERS = {"int8": "VNNI", **dict.fromkeys((*FOUR_BITS, FP8_BLOCK), "INT4")}  # what says whether their compiled products are there


class Ran(NamedTuple):
    """Who computes something: "fused" (Triton), "compiled" (csrc), "torch".

    why: it is not a faster one; None: this machine has none for this dtype.
    """

    by: str
    why: str | None


def best(device: torch.device, dtype: torch.dtype, weights: str = "auto") -> Ran:
    """The fastest that this machine has. weights: see `EngineConfig`."""
    if device.type == "cuda":
        triton = importlib.util.find_spec("triton") is not None
        return Ran("fused", None) if triton else Ran("torch", "triton is not installed: pip install 'sgl[cuda]'")
    if device.type != "cpu":
        return Ran("torch", None)
    if cpu.kernels is None:
        return Ran("torch", "the compiled kernels are not there: with a C compiler at hand, install sgl again")
    if dtype not in cpu.KINDS:
        return Ran("torch", f"the compiled kernels compute float32 and bfloat16, not {str(dtype).removeprefix('torch.')}")
    there = getattr(cpu.kernels, WHOLE_NUMBERS[weights]) if weights in WHOLE_NUMBERS else cpu.can_multiply(dtype, device)
    return Ran("compiled" if there else "torch", None)


def expected(model: Decoder, device: torch.device, weights: str = "auto") -> list[Ran]:
    """Of each layer, were the model loaded on `device`; it may have no memory itself (device "meta").

    weights: what becomes of them, see `EngineConfig`.
    """
    fastest = best(device, model.dtype, weights)
    if fastest.by == "torch":
        return [fastest] * len(model.layers)
    if fastest.by == "fused":
        return [_fused(block, model.dtype) for block in model.layers]
    whys = [compiled_refusal(block) for block in model.layers]
    return [fastest if why is None else Ran("torch", why) for why in whys]


def _fused(block: Block, dtype: torch.dtype) -> Ran:
    """The kernels may take what stands around a mixer that they leave."""
    why = fused_refusal(block, dtype)
    if why is None:
        return Ran("fused", None)
    return Ran("torch", why) if around_refusal(block, dtype) is not None else Ran("fused", f"torch's operations compute the mixer: {why}")


def executors(model: Decoder) -> list[Ran]:
    """Of each layer of a sealed model."""
    if model.fused:
        return _unfolded(model, expected(model, torch.device("cuda")))
    claimed = [False] * len(model.layers) if model.step is None else model.step.claimed
    fastest = best(model.device, model.dtype)
    rest = [fastest if fastest.by == "torch" else Ran("torch", _refusal(block)) for block in model.layers]
    return [Ran("compiled", None) if ours else left for ours, left in zip(claimed, rest, strict=True)]


def _unfolded(model: Decoder, runs: list[Ran]) -> list[Ran]:
    """With what few rows of a layer in few bits wait for."""
    if (why := model.course.few_why) is None:
        return runs
    from .few_claims import in_few_bits

    told = f"steps of few rows do not fold norms and additions into products of few bits: {why}"
    return [Ran(run.by, told) if run.why is None and in_few_bits(block) else run for run, block in zip(runs, model.layers, strict=True)]


def capturable(model: Decoder) -> bool:
    """See `Decoder.capturable`."""
    if not all(layer.mixer is None or layer.mixer.capturable for layer in model.layers):
        return False
    mixtures = [layer for layer in model.layers if isinstance(layer.ffn, ExpertsPart)]
    return not mixtures or (model.fused and all(None in (fused_refusal(layer, model.dtype), around_refusal(layer, model.dtype)) for layer in mixtures))


def _refusal(block: Block) -> str:
    return compiled_refusal(block) or _products_refusal(block)


def _products_refusal(block: Block) -> str:
    products = [getattr(*place) for place in block.products()]
    kinds = [kind for product in products if not isinstance(product, BlockedLinear) for kind in kinds_of(product)]
    names = dict.fromkeys(PRODUCTS.get(kind, f"products are kept as {kind}") for kind in kinds)
    return "; ".join(names)
