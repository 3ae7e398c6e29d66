"""The same mixed steps through the decoder whole and in pieces, for any device: shared by tests/cpu and tests/gpu."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from part_models import decoder
from torch import Tensor

from sgl.runtime.attention import AttentionLayout, attention_backend
from sgl.runtime.attention.unfused_attention import attend_unfused
from sgl.runtime.cache import GrowableIntArray
from sgl.runtime.executor.gpu_page_table import GpuPageTable
from sgl.runtime.executor.piecewise_graphs import Piece, PiecewiseCudaGraphs
from sgl.runtime.executor.step_arrays import StepArrays
from sgl.runtime.loading import load_model
from sgl.runtime.models.spec.model_spec import ModelSpec
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceStatus
from sgl.runtime.step.step_batch import StepBatch

ROWS, SLOTS = 40, 1200
LONGEST = 100  # tokens of a sequence before it ends


class Row:
    """Tokens of a sequence, and the slots of those that are computed."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens, self.slots = list(tokens), np.zeros(0, np.int32)


class _Op:
    """Wants the logits of the last `wanted` new tokens."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    def rows(self, seq: Any, lo: int, hi: int) -> range:
        return range(max(lo, hi - self.wanted), hi)

    def pool(self, seq: Any, lo: int, hi: int) -> range:
        return range(0)


def state(tokens: Sequence[int], slots: Any, wanted: int) -> Any:
    """What a runner reads of a sequence."""
    return _State(
        tokens=GrowableIntArray(tokens), slots=GrowableIntArray(slots), ops=[_Op(wanted)], status=SequenceStatus.RUNNING
    )


class _State(SimpleNamespace):
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def known(self) -> int:
        return len(self.tokens)


class PooledOracle:
    """Attention by its definition, of what the pool holds."""

    def __init__(self, pool: Any, layout: AttentionLayout) -> None:
        self.pool, self.layout = pool, layout

    def plan(self, batch: StepBatch) -> None: ...

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.layout.stored(self.pool, layer)

    def scales(self, layer: int) -> Any:
        return self.layout.scales(self.pool, layer)

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        return batch.slots

    def attend_into(self, out: Tensor, q: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None = None) -> None:
        attend_pool(out, q, *self.stored(layer), self.layout.layers[layer], batch, sinks)


def attend_pool(
    out: Tensor, q: Tensor, keys: Tensor, values: Tensor, asked: Any, batch: StepBatch, sinks: Tensor | None = None
) -> None:
    """keys, values: [slots, kv_heads, width].  asked: has scale, softcap, window."""
    start = 0
    for count, slots in zip(batch.query_lens, batch.context_slots, strict=True):
        rows, group = slice(start, start + count), q.shape[1] // keys.shape[1]
        k, v = (part[slots].repeat_interleave(group, 1).transpose(0, 1) for part in (keys, values))
        distance = torch.arange(count)[:, None] + len(slots) - count - torch.arange(len(slots))
        seen = (distance >= 0) & (distance < (asked.window or len(slots)))
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf).to(q.device)
        logits = None if sinks is None else sinks.view(-1, 1, 1)
        out[rows] = attend_unfused(q[rows].transpose(0, 1), k, v, mask, asked.scale, asked.softcap, logits).transpose(
            0, 1
        )
        start += count


class Half:
    """A model on a pool of its own, whose free slots hold NaN; in pieces where `graph_for` is given."""

    def __init__(
        self,
        path: Path | ModelSpec,
        device: str,
        dtype: torch.dtype,
        attention: str,
        graph_for: Callable[[Piece], Piece] | None,
        transform: Any = None,
    ) -> None:
        if isinstance(path, ModelSpec):
            self.model = decoder(path, dtype, device)
        else:
            self.model = load_model(path, dtype, device, None, transform)
        layout = self.model.config.attention
        self.pool: Any = layout.pool(SLOTS, dtype, device)
        self.pool.fill_nan(list(range(1, SLOTS)))
        self.attention: Any = (
            PooledOracle(self.pool, layout)
            if attention == "oracle"
            else attention_backend(attention, self.pool, layout, page_size=1, max_running=ROWS)
        )
        self.device = self.pool.device
        self.table = GpuPageTable(ROWS, 512, 1, self.device)
        self.last = torch.zeros(ROWS + 1, dtype=torch.int32, device=device)
        self.states: dict[Row, Any] = {}
        self.pieces = None
        if graph_for is not None:
            self.pieces = PiecewiseCudaGraphs(self.model, self.attention, self.table, self.last, graph_for)

    @torch.inference_mode()
    def step(self, rows: list[Row], counts: Sequence[int], wanted: int | None) -> Tensor:
        """Logits of the last `wanted` new tokens of each row, None: of all. Rows' slots are there already.

        The last token of every second row is known to the device only.
        """
        work = []
        for row, count in zip(rows, counts, strict=True):
            seq = self.states.setdefault(row, state((), (), 0))
            seq.tokens, seq.ops = (
                GrowableIntArray(row.tokens[: len(row.slots)]),
                [_Op(count if wanted is None else wanted)],
            )
            seq.slots.extend(row.slots[len(seq.slots) :])
            work.append(ScheduledWork(seq, len(row.slots) - count, len(row.slots)))
        places = self.table.place(work, lambda array: torch.from_numpy(array).to(self.device))
        for row, seq, place in list(zip(rows, (item.seq for item in work), places, strict=True))[::2]:
            self.last[place] = row.tokens[len(row.slots) - 1]
            seq.tokens.truncate(len(row.slots) - 1)
        step = StepArrays.of(work, places)
        if self.pieces is not None:
            return self.pieces.run(step)
        batch = step.batch([torch.from_numpy(a).to(self.device) for a in step.arrays], self.table, self.last)
        self.attention.plan(batch)
        return self.model.forward(batch, self.attention)


class Pair:
    """A decoder that runs steps whole, and one that runs them in pieces."""

    def __init__(
        self,
        path: Path | ModelSpec,
        device: str,
        graph_for: Callable[[Piece], Piece] = lambda piece: piece,
        dtype: torch.dtype = torch.float32,
        attention: str = "oracle",
        transform: Any = None,
    ) -> None:
        self.whole = Half(path, device, dtype, "torch_native", None, transform)
        self.mixed = Half(path, device, dtype, attention, graph_for, transform)
        self.rows: list[Row] = []
        self._free = list(np.random.default_rng(1).permutation(np.arange(1, SLOTS)))

    def release(self, row: Row) -> None:
        """The row has ended; others get its slots, and what it left in them."""
        self._free += row.slots.tolist()

    def check(self, rows: list[Row], counts: Sequence[int], wanted: int | None = 1, bound: float = 1e-5) -> None:
        """Compute the next tokens of each row in both: the same logits, the same keys and values."""
        self.rows += [row for row in rows if row not in self.rows]
        for row, count in zip(rows, counts, strict=True):
            row.slots = np.append(row.slots, [self._free.pop() for _ in range(count)]).astype(np.int32)
        expected, got = (half.step(rows, counts, wanted).float() for half in (self.whole, self.mixed))
        assert got.shape == expected.shape, counts
        assert not got.isnan().any()
        error = (got - expected).norm() / expected.norm().clamp_min(1e-9)
        assert error < bound, f"step {counts}: {float(error)}"
        for ours, theirs in zip(stored(self.mixed.pool), stored(self.whole.pool), strict=True):
            assert torch.equal(ours.isnan(), theirs.isnan()), counts
            assert (ours - theirs).nan_to_num().norm() <= bound * theirs.nan_to_num().norm(), counts


def stored(pool: Any) -> list[Tensor]:
    return [kept.float() for part in pool.parts for kept in (part.k, part.v)]


def check_random_steps(
    path: Path | ModelSpec,
    device: str,
    steps: int,
    most: int = 9,
    sequences: int = 3,
    bound: float = 1e-5,
    **options: Any,
) -> Pair:
    """Sequences that come and go, decodes first, then chunks of up to `most` tokens; some steps want all logits
    or none."""
    pair, rng = Pair(path, device, **options), np.random.default_rng(0)
    running: list[Row] = []
    for index in range(steps):
        if len(running) < sequences:
            running.append(Row(rng.integers(4, 60, LONGEST + most)))
        counts = sorted(1 if rng.random() < 0.5 else int(rng.integers(2, most + 1)) for _ in running)
        if sum(counts) == 1:
            counts = [2]
        pair.check(running, counts, (1, None, 0)[index % 3], bound)
        ended = [row for row in running if len(row.slots) >= LONGEST]
        if rng.random() < 0.2 and not ended:
            ended = [max(running, key=lambda row: len(row.slots))]
        for row in ended:  # all of them: a row has tokens for one step beyond
            running.remove(row)
            pair.release(row)
    return pair
