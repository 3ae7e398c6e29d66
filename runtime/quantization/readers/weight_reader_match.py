"""What a reader says of a quantised weight before anything of it is read: from the headers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ...errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from ..quantized_weight import QuantizedWeight

FLOATS = ("F32", "F16", "BF16")
BESIDE = ("bias", "k_scale", "v_scale", "kv_scale", "k_zero_point", "v_zero_point")  # that belong to no weight
OF_ACTIVATIONS = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "input_scale_ub",
    "activation_scale",
    "output_scale",
    "output_zero_point",
    "output_global_scale",
    "input_min",
    "input_max",
)

Shape = tuple[int, ...]
Read: TypeAlias = "Callable[[Mapping[str, Tensor]], QuantizedWeight]"


class TensorHeader(NamedTuple):
    """One tensor of a module as the headers have it.

    dtype: as safetensors writes it ("I32", "F8_E4M3", "U8", "BF16").
    """

    dtype: str
    shape: tuple[int, ...]


class WeightReader(NamedTuple):
    """How a module's weight is read.

    format: for people. shape: of the dense weight [out, in]; (1, out * in) where only `read` learns the sizes.
    names: the siblings that `read` takes, after "module.". unused: those that the format has and the weight needs not.
    read: their tensors, in the headers' dtypes and shapes and on any device -> the weight, which may share their
    memory; raises CheckpointError for contents that cannot be.
    """

    format: str
    shape: tuple[int, int]
    names: tuple[str, ...]
    unused: tuple[str, ...]
    read: Read


@dataclass(frozen=True)
class QuantizedModule:
    """A module's name and its tensors, with the checks that all readers make."""

    name: str
    siblings: Mapping[str, TensorHeader]
    called: Mapping[str, str] = field(default_factory=dict)  # how files name them, where the reader has other names

    def has(self, *names: str) -> bool:
        return all(name in self.siblings for name in names)

    def dtype(self, name: str) -> str:
        return self.siblings[name].dtype if name in self.siblings else ""

    def wrong(self, name: str, problem: str) -> CheckpointError:
        found = self.siblings.get(name)
        what = f" ({found.dtype} {list(found.shape)})" if found else ""
        return CheckpointError(f"{self.name}.{self.called.get(name, name)}{what} {problem}")

    def expect(self, name: str, dtypes: Sequence[str], shape: Shape | None = None) -> Shape:
        """The shape of a tensor that must be there, in one of these dtypes, of this shape."""
        if name not in self.siblings:
            raise self.wrong(
                name, f"is missing next to {', '.join(sorted(self.siblings)[:8])}; take a complete checkpoint"
            )
        found = self.siblings[name]
        if found.dtype not in dtypes:
            raise self.wrong(name, f"must be {' or '.join(dtypes)} in this format; convert the checkpoint again")
        if shape is not None and found.shape != shape:
            raise self.wrong(name, f"must have shape {list(shape)} to match its siblings; convert the checkpoint again")
        return found.shape

    def matrix(self, name: str, dtypes: Sequence[str]) -> tuple[int, int]:
        """The same for a matrix that holds something."""
        shape = self.expect(name, dtypes)
        if len(shape) != 2 or min(shape) < 1:
            raise self.wrong(name, "must be a matrix in this format; weights of other ranks (experts) are not read")
        return shape[0], shape[1]

    def vector(self, name: str, dtypes: Sequence[str]) -> int:
        """The length of one that holds something."""
        shape = self.expect(name, dtypes)
        if len(shape) != 1 or shape[0] < 1:
            raise self.wrong(name, "must be a vector in this format; convert the checkpoint again")
        return shape[0]

    def claim(
        self, form: str, shape: tuple[int, int], names: Sequence[str], read: Read, unused: Sequence[str] = ()
    ) -> WeightReader:
        """The claim, once every sibling is accounted for: an unknown one may change the result."""
        spare = tuple(name for name in self.siblings if name in unused or name in OF_ACTIVATIONS)
        for name in self.siblings:
            if name not in names and name not in spare and name not in BESIDE:
                raise self.wrong(
                    name, f"is not understood with a weight of the format {form}; take another checkpoint of this model"
                )
        return WeightReader(form, shape, tuple(names), spare, read)
