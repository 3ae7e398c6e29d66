"""Which mixtures of experts the Triton kernels support on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ...layers.linear_layers import Linear
from ...quantization.deterministic_linear import DeterministicLinear
from ...quantization.gpu_quantized_linear import (
    DeterministicGpuQuantizedLinear,
    GpuQuantizedLinear,
    Int8ActivationLinear,
)
from ..reference.reference_experts import ReferenceExperts
from ..reference.stacked_experts import are_alike
from ..spec.model_spec import GatedFFNSpec

PLAIN, IN_FEW_BITS = (
    (Linear, DeterministicLinear),
    (GpuQuantizedLinear, DeterministicGpuQuantizedLinear, Int8ActivationLinear),
)  # kinds of products; not of a subclass


def refusal(part: ReferenceExperts, activations: tuple[str, ...]) -> Iterator[str]:
    """Why the kernels do not support a mixture, for people."""
    spec = part.part
    networks = [spec.expert, *([spec.shared] if spec.shared else [])]
    if not all(isinstance(each, GatedFFNSpec) for each in networks):
        yield "experts without a gate"
    yield from (f"activation {each.activation!r}" for each in networks if each.activation not in activations)
    if isinstance(spec.shared, GatedFFNSpec) and spec.shared.limit is not None:
        yield "a clamped gate of a shared expert"
    products = [getattr(each, name) for name in (part.experts[0].into, "down") for each in part.experts]
    kinds = {type(product) for product in products}
    if len(kinds) > 1 or not kinds <= {*PLAIN, *IN_FEW_BITS}:
        yield (
            f"experts kept as {', '.join(sorted(kind.__name__ for kind in kinds))}: the kernels have no product "
            "for them yet"
        )
    elif not kinds <= set(PLAIN) and not all(
        are_alike(half) for half in (products[: len(products) // 2], products[len(products) // 2 :])
    ):
        yield "quantized experts of different forms, or with reordered inputs"
    if any(type(product) not in PLAIN for product in (part.router, part.switch) if product is not None):
        yield "a router that is not plain"
