"""Layers that launch the kernels of all layers: while kernels are compiled ahead, the others need not be walked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...layers.linear_layers import Linear
from ..decoder_parts import DecoderParts
from ..reference.reference_block import ReferenceBlock
from ..spec.model_spec import LayerSpec

MOST_PERIOD = 8  # layers of a pattern; a longer one is not looked for
ALIGNED = 16  # bytes by which Triton's compiler distinguishes addresses


def compiled_layers(model: DecoderParts) -> tuple[int, ...]:
    """Indices of layers, in order, whose kernels are those of all layers."""
    return distinct([layer_kind(*pair) for pair in zip(model.config.layers, model.layers, strict=True)])


def layer_kind(spec: LayerSpec, block: ReferenceBlock) -> Hashable:
    """Equal for layers that launch the same kernels with arguments that are compiled alike."""
    products = tuple(
        _product_kind(name, getattr(holder, name)) for branch in block.branches for holder, name in branch.products()
    )
    tensors = tuple(
        (tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr() % ALIGNED) for tensor in block.tensors()
    )
    return spec, products, tensors


def _product_kind(name: str, product: Linear) -> Hashable:
    packed = getattr(product, "packed", None)
    return name, type(product).__name__, None if packed is None else (packed.form, packed.kind, packed.group)


def distinct(kinds: Sequence[Hashable]) -> tuple[int, ...]:
    """The first indices, of a pattern of kinds that repeats to the end twice, and its last ones.

    What precedes an index is of the kind that precedes it in `kinds`; the last index is among them.
    """
    start, period = min(
        ((_repeats_from(kinds, period), period) for period in range(1, MOST_PERIOD + 1)),
        key=lambda found: found[0] + 2 * found[1],
    )
    first = min(start + 2 * period, len(kinds))
    skipped = max(0, len(kinds) - first - 1) // period * period
    return *range(first), *range(first + skipped, len(kinds))


def _repeats_from(kinds: Sequence[Hashable], period: int) -> int:
    """Where the kinds begin to repeat every `period`, to the end."""
    index = len(kinds)
    while index > period and kinds[index - 1] == kinds[index - 1 - period]:
        index -= 1
    return max(0, index - period)
