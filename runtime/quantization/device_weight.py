"""Projections in the form that is computed with, saved and loaded without quantising: in a sharded state, or in the
cache of packed weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError
from ..layers import cpu_kernels
from ..layers.float8_reference import FP8
from ..layers.linear_layers import BlockedLinear, Linear, PackedLinear, TransposedLinear
from ..layers.mixed_format_linear import MixedFormatBlockedLinear, stacked
from .cpu_float_linear import FloatBlockedLinear, SmallFloatLayout
from .cpu_int4_linear import (
    BYTES_OF_SHIFTS,
    LEVELS,
    MIDDLE,
    STEP,
    TWOFOLD,
    TWOFOLD_SHIFTS,
    CpuBlockLayout,
    CpuWeightBlocks,
    GroupedBlockedLinear,
    Int4BlockedLinear,
    Int8GroupedLinear,
)
from .cpu_int8_linear import Int8BlockedLinear
from .fp8_linear import Fp8Linear
from .readers import TensorHeader
from .weight_forms import PACKED_KINDS

CAPABILITY = (8, 9)  # of a GPU that multiplies float8
ON_CPU = (torch.float32, torch.bfloat16)  # what the compiled products multiply
DENSE = (Linear, BlockedLinear, PackedLinear, TransposedLinear)  # the weight as it is, in whatever order
MOST_WHOLE = 2**15  # of the integer zeros of tables and codes
MOST_FOLD = 16
DENSE_BLOCKS = {0: ("F32", 1), 1: ("BF16", 2)}  # by the number of the dtype: its name, and inputs that go together


@dataclass(frozen=True)
class DeviceWeight:
    """A projection's weight in the form that is computed with (see `Linear.coded`); its rows are in order already.

    kind: of CACHED_KINDS.  numbers: its parameters other than tensors.  name: for errors.
    """

    kind: str
    numbers: dict[str, int]
    tensors: dict[str, Tensor]
    name: str = ""

    @property
    def format(self) -> str:
        return f"packed {self.kind}"

    def take(self, rows: Tensor) -> DeviceWeight:
        return self

    def restore(self, to: Tensor) -> None:
        self.dense(to.dtype)

    def dense(self, dtype: torch.dtype) -> NoReturn:
        raise CheckpointError(
            f"{self.name}: it is packed, and config.json asks for a dense weight; take the model that the state was "
            "made of"
        )

    def layer(self, loaded: Linear) -> Linear:
        """Raises CheckpointError for contents that cannot be."""
        try:
            return CACHED_KINDS[self.kind].layer(self.numbers, self.tensors, loaded)
        except CheckpointError as error:
            raise CheckpointError(f"{self.name}: {error}") from error


class ProjectionFormat:
    """How projections of one class are written and read. `inputs` and `outputs`: of the whole projection."""

    made: ClassVar[type[Linear]]

    @abstractmethod
    def form(self, layer: Any) -> tuple[dict[str, int], dict[str, Tensor]]: ...

    @abstractmethod
    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        """The tensors that belong to these numbers, except those that may be missing.

        Raises CheckpointError for invalid numbers.
        """

    def optional(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        """Tensors that may be missing."""
        return {}

    @abstractmethod
    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        """loaded: has the bias, and the shape and dtype of the weight."""

    @abstractmethod
    def missing(self, device: torch.device) -> str | None:
        """What this machine would need to compute with it."""


class GroupedFormat(ProjectionFormat):
    """Codes of so many bits with scales of groups."""

    made: ClassVar[type[GroupedBlockedLinear]]
    bits: ClassVar[int]

    def form(self, layer: GroupedBlockedLinear) -> tuple[dict[str, int], dict[str, Tensor]]:
        return layer.layout._asdict(), {name: part for name, part in layer.blocks._asdict().items() if part is not None}

    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        if set(numbers) != set(CpuBlockLayout._fields) or not self._can_be(layout := CpuBlockLayout(**numbers), inputs):
            raise CheckpointError(f"its numbers cannot be: {numbers}")
        return {"blocks": TensorHeader("U8", (-(-outputs // cpu_kernels.BLOCK), layout.stride(inputs)))}

    def _can_be(self, layout: CpuBlockLayout, inputs: int) -> bool:
        groups = layout.group >= 1 and (layout.group >= inputs or layout.group % STEP == 0)
        twofold = layout.scales == TWOFOLD
        kinds = (
            0 <= layout.scales <= TWOFOLD
            and 0 <= layout.shifts < len(BYTES_OF_SHIFTS)
            and (twofold or layout.shifts != TWOFOLD_SHIFTS)
        )
        wholes = abs(layout.centre) <= MOST_WHOLE and (
            0 <= layout.above < MIDDLE if self.bits == 4 else layout.above == MIDDLE
        )
        return (
            layout.bits == self.bits
            and groups
            and kinds
            and wholes
            and 0 <= layout.fold <= (MOST_FOLD if twofold else 0)
        )

    def optional(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        table = {"table": TensorHeader("U8", (LEVELS,))} if self.bits == 4 else {}
        return {"order": TensorHeader("I32", (inputs,)), "factor": TensorHeader("F32", (outputs,)), **table}

    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        (outputs, inputs), parts = loaded.weight.shape, [tensors.get(name) for name in CpuWeightBlocks._fields[1:]]
        order = tensors.get("order")
        if order is not None and not 0 <= int(order.min()) <= int(order.max()) < inputs:
            raise CheckpointError(f"its order of the inputs is none of {inputs}; write the state again")
        blocks = CpuWeightBlocks(tensors["blocks"], *parts)
        return self.made.of_blocks(
            blocks, CpuBlockLayout(**numbers), (outputs, inputs), loaded.bias, loaded.weight.dtype
        )

    def missing(self, device: torch.device) -> str | None:
        return (
            None
            if device.type == "cpu" and cpu_kernels.kernels and cpu_kernels.kernels.INT4
            else "the compiled kernels on a CPU with AVX2"
        )


class Int4Format(GroupedFormat):
    made, bits = Int4BlockedLinear, 4


class Int8GroupedFormat(GroupedFormat):
    made, bits = Int8GroupedLinear, 8


class Int8Format(ProjectionFormat):
    made = Int8BlockedLinear

    def form(self, layer: Int8BlockedLinear) -> tuple[dict[str, int], dict[str, Tensor]]:
        return {}, {"blocks": layer.weight, "scale": layer.scale}

    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        if inputs % 2:
            raise CheckpointError(f"it has {inputs} inputs, and pairs are wanted")
        return {
            "blocks": TensorHeader("I8", (-(-outputs // cpu_kernels.BLOCK), inputs // 2, cpu_kernels.BLOCK, 2)),
            "scale": TensorHeader("F32", (outputs,)),
        }

    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        return Int8BlockedLinear.of_blocks(
            tensors["blocks"], tensors["scale"], loaded.weight.shape[1], loaded.bias, loaded.weight.dtype
        )

    def missing(self, device: torch.device) -> str | None:
        return (
            None
            if device.type == "cpu" and cpu_kernels.kernels and cpu_kernels.kernels.VNNI
            else "the compiled kernels on a CPU with AVX512_VNNI"
        )


class Float8Format(ProjectionFormat):
    made = Fp8Linear

    def form(self, layer: Fp8Linear) -> tuple[dict[str, int], dict[str, Tensor]]:
        return {}, {"weight": layer.weight, "scale": layer.scale}

    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        return {"weight": TensorHeader("F8_E4M3", (outputs, inputs)), "scale": TensorHeader("F32", (outputs,))}

    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        if (dtype := loaded.weight.dtype) != torch.bfloat16 and tensors["weight"].is_cuda:
            raise CheckpointError(
                f"float8 weights go with dtype='bfloat16' on a GPU, the model is in {dtype}: set dtype='bfloat16'"
            )
        return Fp8Linear(tensors["weight"].view(FP8), tensors["scale"], loaded.bias)

    def missing(self, device: torch.device) -> str | None:
        there = device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY
        return None if there else f"a GPU with compute capability {'.'.join(map(str, CAPABILITY))}"


class DenseFormat(ProjectionFormat):
    """The weight as it is, in blocks of the model's dtype."""

    made = BlockedLinear

    def form(self, layer: BlockedLinear) -> tuple[dict[str, int], dict[str, Tensor]]:
        return {"dtype": cpu_kernels.KINDS[layer.weight.dtype]}, {"blocks": layer.weight}

    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        dtype, group = DENSE_BLOCKS[numbers["dtype"]]
        shape = (-(-outputs // cpu_kernels.BLOCK), inputs // group, cpu_kernels.BLOCK, group)
        return {"blocks": TensorHeader(dtype, shape)}

    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        outputs, inputs = loaded.weight.shape
        return BlockedLinear.of_dense_blocks(tensors["blocks"], (outputs, inputs), loaded.bias)

    def missing(self, device: torch.device) -> str | None:
        return None if device.type == "cpu" and cpu_kernels.kernels else "the compiled kernels on a CPU"


class SmallFloatFormat(ProjectionFormat):
    """Codes that are floats of a table of 16, or float8."""

    made = FloatBlockedLinear

    def form(self, layer: FloatBlockedLinear) -> tuple[dict[str, int], dict[str, Tensor]]:
        parts = {"blocks": layer.weight, "order": layer.order, "table": layer.table, "factor": layer.factor}
        return layer.layout._asdict(), {name: part for name, part in parts.items() if part is not None}

    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        stride = SmallFloatLayout(**numbers).stride(inputs)
        return {"blocks": TensorHeader("U8", (-(-outputs // cpu_kernels.BLOCK), stride))}

    def optional(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        table = {"table": TensorHeader("F32", (LEVELS,))}
        return {"order": TensorHeader("I32", (inputs,)), "factor": TensorHeader("F32", (outputs,)), **table}

    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        (outputs, inputs), parts = loaded.weight.shape, [tensors.get(name) for name in CpuWeightBlocks._fields[1:]]
        blocks = CpuWeightBlocks(tensors["blocks"], *parts)
        return FloatBlockedLinear.of_blocks(
            blocks, SmallFloatLayout(**numbers), (outputs, inputs), loaded.bias, loaded.weight.dtype
        )

    def missing(self, device: torch.device) -> str | None:
        return KINDS["int4"].missing(device)


class MixedFormat(ProjectionFormat):
    """Rows of several kinds: numbers and tensors of each have its place before their names."""

    made = MixedFormatBlockedLinear

    def form(self, layer: MixedFormatBlockedLinear) -> tuple[dict[str, int], dict[str, Tensor]]:
        numbers, tensors = dict[str, int](), dict[str, Tensor]()
        for place, piece in enumerate(layer.pieces):
            weight = sealed_weight_of(piece)
            if weight is None:
                raise ConfigError(f"a piece of a projection is computed by {type(piece).__name__}")
            numbers |= {f"{place}_outputs": piece.outputs, f"{place}_kind": [*CACHED_KINDS].index(weight.kind)}
            numbers |= {f"{place}_{name}": number for name, number in weight.numbers.items()}
            tensors |= {f"{place}_{name}": tensor for name, tensor in weight.tensors.items()}
        return numbers, tensors

    def expected(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        return {
            f"{place}_{name}": header
            for place, (kind, own, rows) in enumerate(self._pieces(numbers))
            for name, header in CACHED_KINDS[kind].expected(own, rows, inputs).items()
        }

    def optional(self, numbers: dict[str, int], outputs: int, inputs: int) -> dict[str, TensorHeader]:
        return {
            f"{place}_{name}": header
            for place, (kind, own, rows) in enumerate(self._pieces(numbers))
            for name, header in CACHED_KINDS[kind].optional(own, rows, inputs).items()
        }

    def layer(self, numbers: dict[str, int], tensors: dict[str, Tensor], loaded: Linear) -> Linear:
        found, start, (_, inputs), dtype = list[Linear](), 0, loaded.weight.shape, loaded.weight.dtype
        for place, (kind, own, rows) in enumerate(self._pieces(numbers)):
            begin, bias = f"{place}_", None if loaded.bias is None else loaded.bias[start : start + rows]
            parts = {name.removeprefix(begin): part for name, part in tensors.items() if name.startswith(begin)}
            of_rows = Linear(torch.empty(rows, inputs, dtype=dtype, device="meta"), bias)
            found.append(CACHED_KINDS[kind].layer(own, parts, of_rows))
            start += rows
        return stacked(found, [piece.outputs for piece in found if isinstance(piece, BlockedLinear)], inputs, dtype)

    def missing(self, device: torch.device) -> str | None:
        return KINDS["int4"].missing(device)

    def _pieces(self, numbers: dict[str, int]) -> list[tuple[str, dict[str, int], int]]:
        """Of each its kind, its numbers and its outputs."""
        own: dict[str, dict[str, int]] = {}
        for name, number in numbers.items():
            place, _, rest = name.partition("_")
            own.setdefault(place, {})[rest] = number
        return [([*CACHED_KINDS][each.pop("kind")], each, each.pop("outputs")) for each in own.values()]


KINDS: dict[str, ProjectionFormat] = dict(
    zip(PACKED_KINDS, (Int4Format(), Int8Format(), Int8GroupedFormat(), Float8Format()), strict=True)
)


CACHED_KINDS: dict[str, ProjectionFormat] = {
    **KINDS,
    "dense": DenseFormat(),
    "small_float": SmallFloatFormat(),
    "mixed": MixedFormat(),
}  # KINDS are those of a sharded state, which is for other machines too


def sealed_weight_of(layer: Linear) -> DeviceWeight | None:
    """Of a projection that the compiled kernels compute; None: it is computed by another class."""
    for name, kind in CACHED_KINDS.items():
        if type(layer) is kind.made:
            return DeviceWeight(name, *kind.form(layer))
    return None


def device_weight_of(layer: Linear) -> DeviceWeight | None:
    """For a sharded state. None: its weight is dense. Raises ConfigError for what none of KINDS is made for."""
    if type(layer) in DENSE:
        return None
    weight = sealed_weight_of(layer)
    if weight is not None and weight.kind in KINDS:
        return weight
    known = ", ".join(kind.made.__name__ for kind in KINDS.values())
    raise ConfigError(
        f"a projection is computed by {type(layer).__name__}, which sgl shard does not pack; it packs {known}: "
        "take other weights=, or write the model in few bits with sgl quantize"
    )


def require_here(kinds: Iterable[str], device: torch.device, dtype: torch.dtype) -> None:
    """Raises CheckpointError for what nothing on this device computes with, or not in this dtype."""
    for kind in kinds:
        if (missing := KINDS[kind].missing(device)) is not None:
            raise CheckpointError(
                f"weights are packed as {kind} for {missing}, which is not here ({device}); take the model that they "
                "were made of"
            )
        if device.type == "cpu" and dtype not in ON_CPU:
            raise CheckpointError(
                f"weights are packed as {kind}, which goes with float32 and bfloat16, the model is in {dtype}: set "
                "dtype"
            )


def check(kind: str, numbers: dict[str, int], tensors: Mapping[str, TensorHeader], shape: tuple[int, int]) -> None:
    """Raises CheckpointError where headers, numbers and a projection [out, in] do not belong together."""
    found = CACHED_KINDS[kind]
    expected, optional = found.expected(numbers, *shape), found.optional(numbers, *shape)
    for name, sibling in tensors.items():
        if name not in expected and name not in optional:
            raise CheckpointError(f"{name} ({sibling.dtype} {list(sibling.shape)}) is no part of it")
    for name, sibling in {
        **expected,
        **{name: sibling for name, sibling in optional.items() if name in tensors},
    }.items():
        if tensors.get(name) != sibling:
            there = tensors.get(name)
            raise CheckpointError(
                f"{name} must be {sibling.dtype} {list(sibling.shape)}, it is "
                f"{f'{there.dtype} {list(there.shape)}' if there else 'missing'}"
            )
