"""Which executor would compute each layer of a model on a CPU, known from the model's description alone."""

from __future__ import annotations

from typing import NamedTuple

from ..layers import compiled_kernels
from ..quantization.weight_forms import FOUR_BITS, FP8_BLOCK
from .cpu.cpu_support import cpu_refusal
from .spec.model_spec import ModelSpec

WHOLE_NUMBERS = {
    "int8": "VNNI",
    **dict.fromkeys((*FOUR_BITS, FP8_BLOCK), "INT4"),
}  # what says whether their compiled products exist


class LayerExecutorChoice(NamedTuple):
    """The executor of something: "fused" (Triton), "compiled" (csrc), "torch".

    why: the reason why no faster one runs it; None: this machine has none for this dtype.
    """

    by: str
    why: str | None


def best_cpu_executor(dtype: str, weights: str = "auto") -> LayerExecutorChoice:
    """The fastest one of this CPU. dtype: by its name in torch.  weights: see `EngineConfig`."""
    kernels = compiled_kernels.kernels
    if kernels is None:
        return LayerExecutorChoice(
            "torch", "the compiled kernels are not there: with a C compiler at hand, install sgl again"
        )
    if dtype not in compiled_kernels.KINDS:
        return LayerExecutorChoice("torch", f"the compiled kernels compute float32 and bfloat16, not {dtype}")
    there = getattr(kernels, WHOLE_NUMBERS[weights]) if weights in WHOLE_NUMBERS else compiled_kernels.multiplies(dtype)
    return LayerExecutorChoice("compiled" if there else "torch", None)


def executors_on_cpu(model: ModelSpec, dtype: str, weights: str = "auto") -> list[LayerExecutorChoice]:
    """For each layer. dtype, weights: see `best_cpu_executor`."""
    fastest = best_cpu_executor(dtype, weights)
    if fastest.by == "torch":
        return [fastest] * len(model.layers)
    whys = [cpu_refusal(layer, model.per_layer is not None) for layer in model.layers]
    return [fastest if why is None else LayerExecutorChoice("torch", why) for why in whys]
