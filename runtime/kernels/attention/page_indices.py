"""The first pages of several sequences, concatenated, from the page table and the slots of a step's new tokens."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry

BLOCK = 1024
VIEWS = (
    "out",
    "indptr",
    "sequences",
    "rows",
    "starts",
    "contexts",
    "slots",
    "table",
)  # of larger tensors, with any alignment


@entry
@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=VIEWS)
def _page_indices(
    out,
    indptr,
    sequences,
    rows,
    starts,
    contexts,
    slots,
    table,
    table_stride,
    PAGE: tl.constexpr,
    REACH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: runs, blocks of the longest run."""
    run = tl.program_id(0)
    begin = tl.load(indptr + run)
    count = tl.load(indptr + run + 1) - begin
    page = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) * BLOCK < count:
        live = page < count
        sequence = tl.load(sequences + run)
        start = tl.load(starts + sequence)
        cached = tl.load(contexts + sequence) - tl.load(starts + sequence + 1) + start
        old = (page + 1) * PAGE <= cached
        pages = table + tl.load(rows + sequence).to(tl.int64) * table_stride
        known = tl.load(pages + page, mask=live & old, other=0)
        token = start + tl.maximum(page * PAGE, cached) - cached
        fresh = tl.load(slots + token, mask=live & (page * PAGE + PAGE > cached), other=0) // PAGE
        found = tl.where(old, known, fresh.to(tl.int32))
        if REACH > 0:
            found = tl.where((page + 1) * PAGE <= cached - REACH + 1, 0, found)
        tl.store(out + begin + page, found, mask=live)


def page_indices(
    out: Tensor,
    indptr: Tensor,
    sequences: Tensor,
    longest: int,
    rows: Tensor,
    starts: Tensor,
    contexts: Tensor,
    slots: Tensor,
    table: Tensor,
    page_size: int,
    reach: int = 0,
) -> None:
    """Write to out[indptr[r] : indptr[r + 1]] as many pages of sequence sequences[r], from its first on.

    out: int32.  indptr: int32 [runs + 1].  sequences: int32 [runs].  longest: most pages of a run.
    rows, starts, contexts, slots, table: of the step, see `DeviceBatch` and `Batch`. Pages that hold new tokens come
    from their slots: the table gets them only in the step itself.
    reach: latest tokens that a query sees, its own included; pages that none of the step's sees become page 0.  0: they
        see all.
    """
    blocks = triton.cdiv(longest, BLOCK)
    _page_indices[(len(sequences), blocks)](
        out,
        indptr,
        sequences,
        rows,
        starts,
        contexts,
        slots,
        table,
        table.stride(0),
        PAGE=page_size,
        REACH=reach,
        BLOCK=BLOCK,
    )
