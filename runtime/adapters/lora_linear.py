"""Products with adapters in torch, the reference: y = W x + b for all rows, plus scale * B (A x) for those that have an
adapter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from ..layers.linear_layers import Linear
from ..models.gpu.lora_gemv_linear import LoraGemvLinear
from ..step.adapter_rows import NONE, AdapterRows
from .adapter import ABSENT, Adapter
from .adapter_extras import AdapterExtras
from .adapter_sites import AdapterSite

if TYPE_CHECKING:
    from ..kernels.gemv.gemv_lora import GemvLora
    from ..kernels.residual_norm import NormWeights


class AdapterResidency(Protocol):
    """What is in the slots. See `slots.Slots`."""

    version: int

    def adapter(self, slot: int) -> Adapter: ...


class ReferenceAdapters:
    """Adds for the rows of the step at hand, which `rows` are.

    name: of the executor.  why: the reason why nothing faster runs.
    fast: where steps without special rows run, for people; "": nowhere else.  in_step: that is the compiled step.
        capturable: that is a CUDA graph.  by_row: each row by itself, so that its bits do not depend on the others.
    has_gemv: kernels for a batch of one add what its adapter does, see `supports_gemv`.
    places: how many slots there are, of a capturable one.
    special: slots of the step at hand whose adapters have more than pairs, or pairs of products that only the
        reference adds to.
    """

    name = "torch"
    why: str | None = None
    fast = ""
    in_step = capturable = has_gemv = False
    places = 0
    rows: AdapterRows

    def __init__(self, resident: AdapterResidency, by_row: bool = False) -> None:
        self._resident, self._by_row = resident, by_row
        self.special: list[int] = []

    def begin(self, rows: AdapterRows) -> None:
        """A step begins."""
        self.rows = rows
        used = [int(slot) for slot in np.unique(rows.tokens) if slot >= 0]
        self.special = [slot for slot in used if self.has_extras(self._resident.adapter(slot))]

    def has_extras(self, adapter: Adapter) -> bool:
        """Whether the reference runs its steps; on GPUs all ranks must agree."""
        return bool(adapter.extra_kinds)

    @property
    def extras(self) -> list[AdapterExtras]:
        """Of the special ones of the step at hand."""
        return [self._resident.adapter(slot).extras for slot in self.special]

    def captures(self, slots: Iterable[int]) -> bool:
        """Whether a step with the adapters of these slots may be a CUDA graph."""
        return self.capturable and not any(
            self.has_extras(self._resident.adapter(slot)) for slot in {*slots} if slot != NONE
        )

    def outside(self, adapter: Adapter) -> str:
        """What it has because of which its steps do not run where others' do (`fast`), for people."""
        return (
            ""
            if not self.fast or not self.has_extras(adapter)
            else ", ".join(adapter.extra_kinds) or "pairs of mixers that torch computes"
        )

    def rows_with_extras(self, count: int) -> Iterator[tuple[AdapterExtras, Tensor]]:
        """Of as many rows of the step those whose adapters have more than pairs, int64: by adapter, or one by one."""
        for slot, rows in self.rows.groups(count) if self.special else ():
            if slot in self.special:
                extras = self._resident.adapter(slot).extras
                yield from ((extras, part) for part in (rows.split(1) if self._by_row else (rows,)))

    def begin_product(self, x: Tensor, site: AdapterSite) -> Tensor | None:
        """What of a product can be computed before the base's, for `add`."""
        return None

    def product(self, base: Linear, x: Tensor, site: AdapterSite) -> Tensor:
        """The base's product of x [T, inputs] with what the rows' adapters add, [T, outputs]."""
        begun, y = self.begin_product(x, site), base(x)
        for extras, rows in self.rows_with_extras(len(x)):
            if extras.changes(site.number):
                y[rows] = extras.changed(y[rows], site.number)
        return self.add(y, x, site, begun)

    def added_to(self, base: Linear, residual: Tensor, x: Tensor, site: AdapterSite) -> Tensor:
        """residual [T, outputs] + the product of x; may write into `residual`. Rows whose base's
        product is not changed are added to as without adapters.
        """
        begun = self.begin_product(x, site)
        changed = [
            (rows, residual[rows], extras)
            for extras, rows in self.rows_with_extras(len(x))
            if extras.changes(site.number)
        ]
        y = base.added_to(residual, x)
        for rows, before, extras in changed:
            y[rows] = before + extras.changed(base(x[rows]), site.number)
        return self.add(y, x, site, begun)

    def add(self, y: Tensor, x: Tensor, site: AdapterSite, begun: Tensor | None = None) -> Tensor:
        """y [T, outputs] += what the rows' adapters make of x [T, inputs]; returns y."""
        for slot, rows in self.rows.groups(len(x)):
            adapter = self._resident.adapter(slot)
            if adapter.places[site.number] != ABSENT:
                rows = rows.to(x.device)
                parts = rows.split(1) if self._by_row else (rows,)
                for part in parts:
                    y.index_add_(0, part, delta(adapter, site, x.index_select(0, part)))
        return y

    def supports_gemv(self, site: AdapterSite) -> bool:
        """Whether kernels for a batch of one add its adapter to this product, see `pair_of_row`."""
        return False

    def pair_of_row(self, x: Tensor, norm: NormWeights | None, site: AdapterSite) -> GemvLora:
        """Their argument for the adapter of the row norm(x) [1, inputs]."""
        raise NotImplementedError


def delta(adapter: Adapter, site: AdapterSite, x: Tensor) -> Tensor:
    """scale * B (A x): x [T, inputs] -> [T, outputs]. A x is rounded to x's dtype, as PEFT rounds it."""
    (first, second), scales = adapter.pair(site), adapter.scales[site.number]
    found = x.new_zeros(len(x), site.outputs)
    for piece, start, stop in site.runs:
        if scales[piece]:
            found[:, start:stop] = (x @ first[piece].T) @ second[:, start:stop] * float(scales[piece])
    return found


class AdaptedLinear(LoraGemvLinear):
    """A product of the base with what adapters add to it. special: of steps with adapters that have more than pairs."""

    __slots__ = ("products", "site", "special")

    def __init__(self, base: Linear, site: AdapterSite, products: ReferenceAdapters, special: bool = False) -> None:
        super().__init__(base)
        self.site, self.products, self.special = site, products, special

    @property
    def adds_in_kernel(self) -> bool:
        return not self.special and self.products.supports_gemv(self.site)

    def pair(self, x: Tensor, norm: NormWeights | None) -> GemvLora:
        return self.products.pair_of_row(x, norm, self.site)

    def __call__(self, x: Tensor) -> Tensor:
        return self.products.product(self.inner, x, self.site)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return self.products.added_to(self.inner, residual, x, self.site)


def rows_of(slots: Sequence[int], lengths: Sequence[int], wanted: Sequence[int]) -> AdapterRows:
    """slots: of each sequence of a step.  lengths: its new tokens.  wanted: the tokens whose logits are wanted."""
    tokens = np.repeat(np.asarray(slots, np.int32), lengths)
    return AdapterRows(tokens, tokens[np.asarray(wanted, np.int64)])
