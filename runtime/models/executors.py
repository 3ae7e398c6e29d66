"""Who computes the layers of a decoder on this machine, and why nothing faster does: once loaded, and before."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..layers import cpu
from ..layers.linear import BlockedLinear
from .claims import layer_refusal, model_refusal
from .claims_gpu import fused_refusal

if TYPE_CHECKING:
    from .block import Block
    from .decoder import Decoder

SMALL_MODEL = 512 * 2**20  # bytes of weights up to which faster layouts are kept beside plain and shared ones
PRODUCTS = {
    "FixedRowsLinear": "deterministic=True multiplies a fixed number of rows at a time",
    "Int8Linear": "this CPU has no int8 instructions",
}  # why a product is not the compiled one, by its class
LARGE = f"above {SMALL_MODEL / 2**20:g} MiB"
ONE_LAYOUT = f"{LARGE} bfloat16 weights are kept once, for oneDNN's products of many rows"
ONE_TABLE = f"{LARGE} a tied head is kept once, as the embedding's table"


class Ran(NamedTuple):
    """Who computes something: "fused" (Triton), "compiled" (cpu.c), "torch".

    why: it is not a faster one; None: this machine has none for this dtype.
    """

    by: str
    why: str | None


def best(device: torch.device, dtype: torch.dtype) -> Ran:
    """The fastest that this machine has."""
    if device.type == "cuda":
        triton = importlib.util.find_spec("triton") is not None
        return Ran("fused", None) if triton else Ran("torch", "triton is not installed: pip install 'sgl[cuda]'")
    if device.type != "cpu":
        return Ran("torch", None)
    if cpu.kernels is None:
        return Ran("torch", "the compiled kernels are not there: with a C compiler at hand, install sgl again")
    if dtype not in cpu.KINDS:
        return Ran("torch", f"the compiled kernels compute float32 and bfloat16, not {str(dtype).removeprefix('torch.')}")
    return Ran("compiled" if cpu.can_multiply(dtype, device) else "torch", None)


def expected(model: Decoder, device: torch.device, weights: str = "auto") -> list[Ran]:
    """Of each layer, were the model loaded on `device`; it may have no memory itself (device "meta").

    weights: what becomes of them, see `EngineConfig`.
    """
    fastest = best(device, model.dtype)
    if fastest.by == "torch":
        return [fastest] * len(model.layers)
    if fastest.by == "fused":
        return [fastest if (why := fused_refusal(block, model.dtype)) is None else Ran("torch", why) for block in model.layers]
    whole = model_refusal(model) or (_layout_refusal(model) if (fastest.by, weights) == ("compiled", "auto") else None)
    whys = [layer_refusal(block) or (_width_refusal(block) if fastest.by == "compiled" else None) or whole for block in model.layers]
    return [fastest if why is None else Ran("torch", why) for why in whys]


def _width_refusal(block: Block) -> str | None:
    dim = block.layer.mixer.dim
    return None if dim <= cpu.MOST_DIM else f"heads of {dim} numbers; the compiled kernels take up to {cpu.MOST_DIM}"


def _layout_refusal(model: Decoder) -> str | None:
    if model.parameter_count * model.dtype.itemsize <= SMALL_MODEL:
        return None
    if cpu.most_rows(model.dtype) is not None:
        return ONE_LAYOUT
    return ONE_TABLE if model.config.tied else None


def executors(model: Decoder) -> list[Ran]:
    """Of each layer of a sealed model."""
    if model.step is not None:
        return [Ran("compiled", None)] * len(model.layers)
    if model.fused:
        return expected(model, model.device)
    return [Ran("torch", _products_refusal(model)) if ran.by != "torch" else ran for ran in expected(model, model.device)]


def _products_refusal(model: Decoder) -> str:
    products = [getattr(*place) for block in model.layers for place in block.products()]
    kinds = [type(product).__name__ for product in (*products, model.head.product) if not isinstance(product, BlockedLinear)]
    names = dict.fromkeys(PRODUCTS.get(kind, f"products are kept as {kind}") for kind in kinds)
    return "; ".join(names)
