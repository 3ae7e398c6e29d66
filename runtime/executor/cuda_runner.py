"""The runner for a GPU: packs a step into one copy, never waits for the device, replays steps as graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.recurrent_state_slots import EMPTY_SLOT, SCRAP_SLOT
from ..errors import note_sequence
from ..kernels.launch.compile_ahead import listen, seconds_waited
from ..models.decoder import Decoder
from ..sequences.sequence_state import ScheduledWork
from ..step.adapter_blocks import StaticAdapterRows, blocks_for
from ..step.adapter_rows import AdapterRows
from ..step.device_upload import upload, upload_into
from ..step.step_batch import DeviceBatch, StepBatch
from ..step.window_slots import WindowSlots
from .cuda_graphs import CudaGraphPool, DecodeCudaGraphs, sizes_up_to
from .eager_runner import adapter_rows, adapter_slots, state_slots, states_for
from .gpu_page_table import GpuPageTable, MirroredPageTable
from .logit_rows import logit_rows, pooled_rows
from .runner_protocol import EnterStage, Steps
from .step_arrays import StepArrays, last_tokens, pack, unpack, window_context_slots
from .warmup import compile_ahead, warm_up_graphs, warm_up_prompts

if TYPE_CHECKING:
    from ..adapters.batch_adapters import BatchAdapters
    from ..cache import WindowPageTable
    from ..models.transformers_backend import AnyDecoder
    from ..parallel.ep.expert_balance import ExpertBalancer
    from ..parallel.workers.worker_group import RankGroup
    from ..sequences.sequence_state import SequenceState
    from .piecewise_graphs import PiecewiseCudaGraphs, PoolOnlyAttention
    from .ranks.stage_steps import PipelineTimer


log = logging.getLogger("sgl.runtime")

# of steps with draft tokens that are computed as decodes, see `split_drafts`
DRAFTED = 17  # tokens of a sequence: one and as many draft tokens as are usual; more are a prompt's
DRAFTED_TOGETHER = 64  # tokens of the step: the graphs of so many decodes are captured before they are wanted
SEEN_AGAIN = 32_768  # keys that all tokens but the first of their sequences may read once more, in each layer

# Of closed engines, to be used again: torch keeps a workspace of cuBLAS (32 MB on Hopper) for every stream for ever.
_idle_streams: dict[torch.device, list[torch.cuda.Stream]] = {}


class CudaRunner:
    """See `Runner`. Everything runs on one separate stream, in order.

    shared: other ranks compute each step too. Then steps with drafts are computed as they are, and those of several
    tokens with adapters run in no pieces.  mirrors: rows of the sequences that represent rank 0's, on other ranks.
    enter: of a pipeline's stage, whose steps run in no pieces.
    idle_step: no request waits for this step.
    """

    team: RankGroup | None = None
    experts: ExpertBalancer | None = None
    pipeline: PipelineTimer | None = None

    def __init__(
        self,
        model: AnyDecoder,
        attention: AttentionBackend,
        device: torch.device,
        *,
        context: int,
        page_size: int,
        max_running: int,
        graphs: bool = True,
        memory: RecurrentStateMemory | None = None,
        windows: WindowPageTable | None = None,
        shared: bool = False,
        mirrors: Mapping[SequenceState, int] | None = None,
        enter: EnterStage | None = None,
    ) -> None:
        self.model, self.attention, self.device, self.memory, self.windows = model, attention, device, memory, windows
        self._shared, self._mirrors, self._enter = shared, mirrors, enter
        self.steps: Steps = CudaRunner.compute
        self.vocab_size = model.config.vocab_size
        self._limits = (max_running, context, page_size)
        self.rows, self.context = max_running, context
        self._pool: CudaGraphPool | None = None
        self._rehearses = self.idle_step = False
        self._ahead: Iterator[None] | None = None
        self._unwaited = 0.0  # seconds of capturing for which no request waited
        self._with_graphs = graphs
        idle = _idle_streams.setdefault(device, [])
        self.sums: Tensor | None = None
        self.adapters: BatchAdapters | None = None
        self._stream = idle.pop() if idle else torch.cuda.Stream(device)
        self._allocate()
        self._stream.wait_stream(torch.cuda.current_stream(device))  # weights and buffers may still be on their way

    def _allocate(self) -> None:
        max_running, context, page_size = self._limits
        self.table = self._new_table(max_running, context, page_size)
        self.last: Tensor | None = torch.zeros(max_running + 1, dtype=torch.int32, device=self.device)
        pool = self._pool = self._new_pool()
        self._graphs = DecodeCudaGraphs(max_running, pool) if pool else None
        self._static: dict[tuple[int, int], StaticDecodeBatch] = {}
        self._mixed = self._mixed_steps(pool) if pool else None
        self._ahead = warm_up_graphs(self) if self._rehearses and pool else None

    def _new_table(self, max_running: int, context: int, page_size: int) -> GpuPageTable:
        if self._mirrors is not None:
            return MirroredPageTable(max_running, context, page_size, self.device, self._mirrors, self.windows)
        return GpuPageTable(max_running, context, page_size, self.device, self.windows)

    def _new_pool(self) -> CudaGraphPool | None:
        """None: without graphs. The one before is dead with the last of its graphs."""
        wanted = self._with_graphs and self.attention.capturable
        return CudaGraphPool(self._pool.seconds if self._pool else 0.0) if wanted else None

    def _mixed_steps(self, pool: CudaGraphPool) -> PiecewiseCudaGraphs | None:
        """None where steps cannot be cut, see `piecewise.refusal`."""
        if not (isinstance(self.model, Decoder) and self.model.fused) or self._enter is not None:
            return None
        from .piecewise_graphs import PiecewiseCudaGraphs, refusal  # need Triton

        if why := refusal(self.model, self.attention):
            log.info("steps of several tokens run without CUDA graphs: %s", why)
            return None
        assert self.last is not None
        return PiecewiseCudaGraphs(
            self.model, cast("PoolOnlyAttention", self.attention), self.table, self.last, pool.graph_for
        )

    # before somebody waits

    @property
    def decode_sizes(self) -> list[int]:
        """Numbers of decoding sequences that steps are padded to."""
        return self._graphs.sizes if self._graphs else sizes_up_to(self.rows)

    @property
    def mixed_sizes(self) -> tuple[int, ...]:
        """Numbers of new tokens that other steps are padded to, up to where they are not."""
        return self._mixed.sizes if self._mixed else ()

    def compile_ahead(self, sampler: Callable[[], None]) -> None:
        """See `rehearsal.compile_ahead`; `warm_up` goes on from there."""
        listen()
        compile_ahead(self, sampler)
        self.begin_warm_up()

    def begin_warm_up(self) -> None:
        """From now on `warm_up` captures graphs."""
        self._rehearses, self._ahead = True, warm_up_graphs(self) if self._graphs is not None else None

    def warm_up(self) -> bool:
        """Takes some milliseconds."""
        if self._ahead is None:
            return False
        if self.team is not None:
            self.team.warm_up()  # the others do the same by themselves
        began, self.idle_step = self.captured_seconds, True
        try:
            with torch.inference_mode():
                next(self._ahead)
        except StopIteration:
            self._ahead = None
        except Exception as error:
            log.warning("graphs are not captured before they are needed: %s", error)
            self._ahead = None
        self.idle_step = False
        self._unwaited += self.captured_seconds - began
        return self._ahead is not None

    def capture_mixed(self) -> Iterator[None]:
        """Captures the graphs of all `mixed_sizes`, a piece between two items."""
        for size in self.mixed_sizes:
            assert self._mixed is not None
            if self._mixed.is_captured(size):
                continue
            self.forward(warm_up_prompts(self, size))
            yield
            for _ in self._mixed.capture(size):  # which stays as it is where this ends early
                yield

    @property
    def captured_seconds(self) -> float:
        return self._pool.seconds if self._pool else 0.0

    def waited(self) -> tuple[float, float]:
        return seconds_waited(), self.captured_seconds - self._unwaited

    # the steps

    def on_device(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def places(self, seqs: list[SequenceState]) -> list[int]:
        return [self.table[seq] for seq in seqs]

    def index(self, rows: list[int]) -> Tensor:
        return upload(np.array(rows, np.int32), self.device)

    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        return self.steps(self, work) if work else None

    @torch.inference_mode()
    def compute(self, work: list[ScheduledWork]) -> Tensor:
        self.sums = None
        rows = self.table.place(work, lambda array: upload(array, self.device))
        slots = adapter_slots(self.adapters, work)
        adapted = bool(slots)
        if self._graphs is not None and (not adapted or (self.adapters is not None and self.adapters.captures(slots))):
            if _is_decode(work):
                return self._decode(self._graphs, work, rows, slots)
            if (wanted := self._wanted_apart(work)) and (single := split_drafts(work, self.rows)) is not None:
                logits = self._decode(
                    self._graphs, single, split_draft_rows(work, rows), adapter_slots(self.adapters, single), len(work)
                )
                return logits if len(wanted) == len(logits) else logits.index_select(0, self.index(wanted))
        step = StepArrays.of(work, rows, self.memory is not None, self.windows)
        owned = adapter_rows(self.adapters, work, step.query_lens, logit_rows(work)) if adapted else None
        if (
            self._mixed is not None
            and not step.pools
            and step.tokens <= self._mixed.most
            and (not adapted or self._cuts_adapted(slots))
        ):
            return self._mixed.run(step, owned)
        return self._eager(step, owned)

    def _cuts_adapted(self, slots: Sequence[int]) -> bool:
        """Whether a step with the adapters in these slots runs in pieces."""
        assert self.adapters is not None and self._mixed is not None
        return not self._shared and self.adapters.captures(slots) and self._mixed.supports_adapters()

    def _wanted_apart(self, work: list[ScheduledWork]) -> list[int]:
        """Rows whose logits are wanted of a step with drafts, if it may be computed token by token; [] otherwise."""
        if (
            self._shared
            or all(seq.draft is None for seq, *_ in work)
            or self.memory is not None
            or self.windows is not None
            or pooled_rows(work)
        ):
            return []
        return logit_rows(work)

    def release(self) -> None:
        self._stream.synchronize()
        self.table.forget()
        del self.table, self._graphs, self._static, self._mixed, self.attention
        self._ahead = None
        self.last = None

    def restore(self, attention: AttentionBackend) -> None:
        self.attention = attention
        try:
            with self.on_device():
                self._allocate()
        except torch.OutOfMemoryError:
            del self.attention
            raise

    def close(self) -> None:
        with suppress(RuntimeError):  # a device that has failed says so once more
            self._stream.synchronize()
            _idle_streams[self.device].append(self._stream)
        if self.team is not None:  # nothing waits for the others any more
            self.team.close()

    # inside

    def _decode(
        self,
        graphs: DecodeCudaGraphs,
        work: list[ScheduledWork],
        rows: list[int],
        slots: Sequence[int],
        running: int = 0,
    ) -> Tensor:
        """running: sequences, where some have several tokens.

        slots: of the adapters of the sequences; []: none has one, and the graph is that of the base.
        """
        size = graphs.size_for(len(work))
        blocks = blocks_for(slots, size) if slots else 0
        if (size, blocks) not in self._static:
            assert self.last is not None
            self._static[size, blocks] = StaticDecodeBatch(size, self.table, self.last, self.memory is not None, blocks)
        static = self._static[size, blocks]
        static.fill(work, rows, slots)
        if self._enter is not None:
            self._enter(static.batch, len(work))
        self.attention.plan(static.batch)
        variant = getattr(self.attention, "variant", None)
        key = (size, blocks, variant(static.batch) if variant else None)
        memory = states_for(self.memory)
        return graphs.run(
            key,
            lambda: self.model.forward(static.batch, self.attention, *memory),
            0 if self.idle_step else running or len(work),
        )[: len(work)]

    def _eager(self, step: StepArrays, adapters: AdapterRows | None) -> Tensor:
        assert self.last is not None
        packed = upload(pack(step.arrays), self.device)
        batch = step.batch(unpack(packed, step.sizes), self.table, self.last)
        batch.adapters = adapters
        if self._enter is not None:
            self._enter(batch, step.tokens)
        self.attention.plan(batch)
        logits = self.model.forward(batch, self.attention, *states_for(self.memory))
        self.sums = batch.sums
        return logits


class StaticDecodeBatch:
    """A decode step of fixed size at fixed addresses; `fill` says what it is about."""

    def __init__(self, size: int, table: GpuPageTable, last: Tensor, states: bool = False, blocks: int = 0) -> None:
        """states: the batch says where they are read and written; padding reads the empty one, writes the scrap slot.

        blocks: of rows with adapters, see `step.adapter_blocks.StaticAdapterRows`; 0: no row has one.
        """
        device = last.device
        self._size, self._padding = size, table.padding
        self._pad_slots = np.zeros(1, np.int32)
        self._windows = table.windows
        arrays = 7 if states else 5 if table.windows is None else 6
        sizes = [size] * arrays + (StaticAdapterRows.sizes(size, blocks) if blocks else [])
        self._packed = torch.zeros(
            len(pack([np.zeros(each, np.int32) for each in sizes])), dtype=torch.int32, device=device
        )
        ids, positions, slots, rows, contexts, *kept = unpack(self._packed, sizes)
        self._adapters = StaticAdapterRows(size, blocks, kept[-4:]) if blocks else None
        self._states = states
        counted = torch.arange(size + 1, dtype=torch.int32, device=device)
        self.batch = StepBatch(
            token_ids=ids,
            positions=positions,
            slots=slots,
            query_lens=[1] * size,
            context_lens=[],
            context_slots=[],
            logit_rows=counted[:size],
            device=DeviceBatch(rows, rows, counted, contexts, table.pages, table.page_size, last, static=True),
            state_read=kept[0] if states else None,
            state_write=kept[1] if states else None,
            windows=None if table.windows is None else WindowSlots(kept[0], [], table.window_pages),
            adapters=None if self._adapters is None else self._adapters.rows,
        )

    def fill(self, work: list[ScheduledWork], rows: list[int], adapters: Sequence[int] = ()) -> None:
        """adapters: slots of the sequences' adapters, none where the step has none."""
        padding = self._size - len(work)
        context_slots = [seq.slots.reaching(hi) for seq, _, hi in work]
        arrays = [
            _padded(last_tokens(work, rows), padding, 0),
            _padded([lo for _, lo, _ in work], padding, 0),
            _padded([slots[lo] for slots, (_, lo, _) in zip(context_slots, work, strict=True)], padding, 0),
            _padded(rows, padding, self._padding),
            _padded([hi for *_, hi in work], padding, 1),
        ]
        if self._states:
            read, write = state_slots(work)
            arrays += [_padded(read, padding, EMPTY_SLOT), _padded(write, padding, SCRAP_SLOT)]
        if self._windows is not None:
            arrays.append(self._windows.slots_of(arrays[2]))
        if self._adapters is not None:
            arrays += self._adapters.arrays(adapters)
        upload_into(self._packed, pack(arrays))
        if self.batch.windows is not None and self._windows is not None:
            self.batch.windows = replace(
                self.batch.windows, context_slots=window_context_slots(self._windows, work, padding)
            )
        self.batch.context_lens = [hi for *_, hi in work] + [1] * padding
        self.batch.context_slots = context_slots + [self._pad_slots] * padding


def _padded(values: list[int], count: int, value: int) -> np.ndarray:
    return np.array(values + [value] * count, np.int32)


def split_drafts(work: list[ScheduledWork], most: int) -> list[ScheduledWork] | None:
    """A step with draft tokens as one of single tokens, in its order: each a separate decode, whose context ends with
    it. None: there are more than `most`, or it is better computed as it is.

    Keys and values of a step are stored before anything attends to them, so a token sees those in front of it. Such a
    step replays the graphs of decodes, whatever mixture of sequences and tokens it has: so drafts are verified.
    """
    lengths = [hi - lo for _, lo, hi in work]
    if sum(lengths) > min(most, DRAFTED_TOGETHER) or max(lengths) > DRAFTED:
        return None
    if sum((length - 1) * hi for length, (*_, hi) in zip(lengths, work, strict=True)) > SEEN_AGAIN:
        return None
    return [ScheduledWork(seq, last, last + 1) for seq, lo, hi in work for last in range(lo, hi)]


def split_draft_rows(work: list[ScheduledWork], rows: list[int]) -> list[int]:
    """What belongs to each sequence, for each of its tokens."""
    return [row for row, (_, lo, hi) in zip(rows, work, strict=True) for _ in range(lo, hi)]


def _is_decode(work: list[ScheduledWork]) -> bool:
    """One new token for each sequence, and everybody wants its logits."""
    if work[-1].hi - work[-1].lo > 1:  # the longest come last
        return False
    try:
        for seq, lo, hi in work:
            if hi - lo != 1 or len(seq.ops[0].rows(seq, lo, hi)) != 1:
                return False
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return True
