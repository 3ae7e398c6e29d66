"""The start of a step: its embeddings, and entering the pages of its tokens into the table."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..step.step_batch import DeviceBatch, StepBatch
from .launch.compile_ahead import entry
from .rms_norm import block_of

PER_TOKEN = (
    "token_ids",
    "positions",
    "slots",
    "token_rows",
    "last",
    "window_slots",
)  # views of one upload, aligned as it falls


@triton.jit
def _enter(token, positions, slots, token_rows, table, table_stride, PAGE: tl.constexpr):
    slot = tl.load(slots + token)
    if slot != 0:
        pages = table + tl.load(token_rows + token).to(tl.int64) * table_stride
        tl.store(pages + tl.load(positions + token) // PAGE, (slot // PAGE).to(tl.int32))


@entry
@triton.jit(do_not_specialize_on_alignment=PER_TOKEN)
def _embed(
    token_ids,
    positions,
    slots,
    token_rows,
    last,
    table,
    window_slots,
    window_table,
    embedding,
    out,
    table_stride,
    size,
    scale,
    SCALED: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a token."""
    token = tl.program_id(0).to(tl.int64)
    token_id = tl.load(token_ids + token)
    if token_id < 0:
        token_id = tl.load(last - 1 - token_id).to(token_id.dtype)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    row = tl.load(embedding + token_id.to(tl.int64) * size + columns, inside)
    if SCALED:
        row = (row.to(tl.float32) * scale).to(row.dtype)
    tl.store(out + token * size + columns, row, inside)
    _enter(token, positions, slots, token_rows, table, table_stride, PAGE)
    if WINDOWED:
        _enter(token, positions, window_slots, token_rows, window_table, table_stride, PAGE)


@entry
@triton.jit(do_not_specialize_on_alignment=PER_TOKEN[1:4])
def _pages(positions, slots, token_rows, table, table_stride, PAGE: tl.constexpr):
    """One program a token."""
    _enter(tl.program_id(0).to(tl.int64), positions, slots, token_rows, table, table_stride, PAGE)


def embed(batch: StepBatch, embedding: Tensor, out: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """The rows of `embedding` [vocabulary, hidden] of a batch's tokens times `scale`, [T, hidden], in `out` or a new
    tensor.

    Ids below 0 are those sampled last (see `StepBatch`). Enters each token's page into `batch.device.table`, and into
    that of `batch.windows`, except for tokens in slot 0.
    """
    device = batch.device
    assert device is not None
    tokens, size = len(batch.token_ids), embedding.shape[1]
    x = embedding.new_empty(tokens, size) if out is None else out
    if tokens:
        block, warps = block_of(size)
        _embed[(tokens,)](
            batch.token_ids,
            batch.positions,
            batch.slots,
            device.token_rows,
            device.last,
            device.table,
            *_windows(batch, device),
            embedding,
            x,
            device.table.stride(0),
            size,
            scale,
            SCALED=scale != 1,
            PAGE=device.page_size,
            WINDOWED=batch.windows is not None,
            BLOCK=block,
            num_warps=warps,
        )
    return x


def _windows(batch: StepBatch, device: DeviceBatch) -> tuple[Tensor, Tensor]:
    """Slots and table of windowed layers, with the strides of all layers' table; any tensors if there are none."""
    if batch.windows is None:
        return batch.slots, device.table
    assert batch.windows.table is not None and batch.windows.table.stride() == device.table.stride()
    return batch.windows.slots, batch.windows.table


def enter_pages(batch: StepBatch) -> None:
    """Enters each token's page into the tables, for steps that `embed` does not begin."""
    device, tokens = batch.device, len(batch.token_ids)
    assert device is not None
    tables = (
        [(batch.slots, device.table)]
        if batch.windows is None
        else [(batch.slots, device.table), _windows(batch, device)]
    )
    for slots, table in tables if tokens else ():
        _pages[(tokens,)](
            batch.positions, slots, device.token_rows, table, table.stride(0), PAGE=device.page_size, num_warps=1
        )
