"""Attention by the faster of two libraries: flashinfer for prefills and shared prefixes, Triton for the rest.

Decodes need no plan for Triton's kernel. If they share a long prefix of pages, flashinfer attends the prefix once, for
all queries together, and the result is merged with that of Triton's kernel for the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..cache.kv_pool import KVPool
from ..kernels.attention.merge_attention import merge_attention
from ..step.step_batch import DeviceBatch, StepBatch
from . import flashinfer_modules as modules
from .backend_protocols import AttentionShape, BackendUnavailable, SinglePoolAttention
from .flashinfer_modules import FlashInferModule
from .flashinfer_planner import LARGE, SMALL, TILES, FlashInferSetup, KernelPlanner, PlannedKernel, float_bytes
from .ragged_page_indices import PageRuns
from .shared_prefix_finder import LEAST_SEQUENCES, PrefixFinder, SharedPrefix
from .topk_attention import TopKSelection
from .triton_attention import TritonAttention, TritonAttentionPlan

HEAD_DIMS = (64, 128, 256)
LONG_QUERIES = 128  # mean queries of a step's prefills from which Hopper's own kernels are faster
SHORT_ROWS = 64  # mean queries times group up to which flashinfer's small tiles waste less
FULL_ROUNDS = 2  # programs on each multiprocessor from which flashinfer's split of keys is not needed
LEAST_PAGES = 1 << 12  # pages that the buffer for prefills holds initially


@dataclass(frozen=True, slots=True)
class SharedPrefixPlan:
    """A prefix attended for all decodes at once. skip: int32 [decodes], pages of it that each of them begins with."""

    kernel: PlannedKernel
    skip: Tensor


@dataclass(frozen=True, slots=True)
class FlashInferPlan:
    """decodes: sequences with one query, the first ones.  prefills: of the others, by window, or Triton's plan."""

    decodes: int
    prefills: dict[int | None, PlannedKernel] | TritonAttentionPlan | None = None
    shared: SharedPrefixPlan | None = None


class FlashInferAttention(SinglePoolAttention):
    """See `AttentionBackend`. Raises BackendUnavailable at once if the kernels do not run here.

    page_size: slots of a page.  max_running: most sequences of a step.  context: most tokens of one; longer prefixes
        are not shared.  The tensors of a batch and of its `device` must be filled before `plan`, except the pages of
        new tokens in `device.table`, which must be filled before `attend`.
    workspace_bytes: device memory used in addition to the pool, without Triton's scratch.
    """

    name, capturable = "flashinfer", True
    by_torch = TritonAttention.by_torch

    def __init__(
        self,
        pool: KVPool,
        shape: AttentionShape,
        page_size: int = 1,
        max_running: int = 256,
        context: int = 8192,
        deterministic: bool = False,
        **options: object,
    ) -> None:
        _check(pool, shape, deterministic)
        self.pool, self.shape, self.page_size = pool, shape, page_size
        self._query_dtype = pool.k.dtype if pool.k.dtype.itemsize == 2 else torch.bfloat16
        device = pool.k.device
        major, self._processors = _machine(device)
        self._hopper = major == 9 and pool.k.dtype.itemsize == 2
        self._windows = list(dict.fromkeys(shape.windows))
        kinds = [self._kind(backend, window) for backend in self._backends for window in self._windows]
        self._modules = modules.load(list(dict.fromkeys(kinds)))
        sequences = max(LEAST_SEQUENCES, 1 << (max_running - 1).bit_length())
        self._own = TritonAttention(pool, shape, page_size, sequences)
        floats = torch.empty(float_bytes(shape, sequences, self._processors), dtype=torch.uint8, device=device)
        setup = FlashInferSetup(shape, page_size, floats, early_launch=major >= 9)
        self._prefill = {window: KernelPlanner(setup, LARGE) for window in self._windows}
        reach = 0 if None in self._windows else max(window or 0 for window in self._windows)
        self._prefill_runs = PageRuns(page_size, sequences, LEAST_PAGES, device, reach)
        self._shared = KernelPlanner(setup, SMALL) if self._windows == [None] else None
        self._most_shared = -(-context // page_size)
        self._shared_runs = PageRuns(page_size, sequences, self._most_shared, device)
        self._finder = PrefixFinder(page_size)
        self._viewed: Tensor | None = None
        self.reason = self._explain()
        self._prove()

    @property
    def workspace_bytes(self) -> int:
        planners = [*self._prefill.values(), *filter(None, [self._shared])]
        runs = self._prefill_runs.nbytes + self._shared_runs.nbytes
        return planners[0].setup.floats.nbytes + sum(planner.integers.nbytes for planner in planners) + runs

    def variant(self, batch: StepBatch) -> Hashable:
        """Which graph the planned static batch needs, in addition to its size; None is the usual one."""
        step: FlashInferPlan = batch.plan
        return None if step.shared is None else "shared prefix"

    @torch.inference_mode()
    def plan(self, batch: StepBatch) -> None:
        own = self._own.plan_of(batch)
        shared = self._plan_shared(batch, own.decodes)
        decodes = own.decodes
        prefills: dict[int | None, PlannedKernel] | TritonAttentionPlan | None = None
        if own.prefills and self._suits_triton(batch, own):
            prefills = own
        elif own.prefills:
            decodes = 0 if shared is None and self._suits_one_kernel(batch) else decodes
            prefills = self._plan_prefills(batch, decodes)
        batch.plan = FlashInferPlan(decodes, prefills, shared)

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        self._own.store(k, v, layer, batch)

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        return self._own.attend_topk(q, chosen, layer, batch, sinks)

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(out, q, layer, batch, sinks)
        return out

    def attend_into(self, out: Tensor, q: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None = None) -> None:
        """`attend` with the result in `out`, contiguous."""
        step: FlashInferPlan = batch.plan
        if step.shared is not None:
            self._attend_shared(step.shared, q[: step.decodes], out[: step.decodes], layer, batch, sinks)
        else:
            self._own.attend_decodes(q, out, layer, batch, step.decodes, sinks=sinks)
        if isinstance(step.prefills, TritonAttentionPlan):
            self._own.attend_prefills(q, out, layer, batch, step.prefills, sinks)
        elif step.prefills is not None:
            planned, q, out = step.prefills[self.shape.windows[layer]], q[step.decodes :], out[step.decodes :]
            lse = None if sinks is None else torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
            self._run(planned, q, out, layer, lse)
            _sink(out, lse, sinks)

    def _attend_shared(
        self, shared: SharedPrefixPlan, q: Tensor, out: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None
    ) -> None:
        lse, prefix_lse = torch.empty(2, *q.shape[:2], dtype=torch.float32, device=q.device)
        prefix = torch.empty_like(out)
        self._run(shared.kernel, q, prefix, layer, prefix_lse)
        self._own.attend_decodes(q, out, layer, batch, len(q), shared.skip, lse)
        merge_attention(out, lse, prefix, prefix_lse, shared.skip)
        if sinks is not None:
            lse = torch.where(shared.skip[:, None] > 0, torch.logaddexp2(lse, prefix_lse), lse)
            _sink(out, lse, sinks)

    def _run(self, planned: PlannedKernel, q: Tensor, out: Tensor, layer: int, lse: Tensor | None = None) -> None:
        k_scale, v_scale = self.scales(layer)
        planned.run(q, self._paged(layer), self.shape.scale * k_scale, out, lse)
        if v_scale != 1:
            out.mul_(v_scale)

    def _suits_one_kernel(self, batch: StepBatch) -> bool:
        """So short that flashinfer takes its smallest tile: decodes need no separate launch in each layer."""
        lengths, group = batch.query_lens, self.shape.group
        return sum(lengths) * group <= TILES[0] * len(lengths) and max(lengths) * group <= TILES[1]

    def _suits_triton(self, batch: StepBatch, plan: TritonAttentionPlan) -> bool:
        """Many prefills of middling length: 4 % faster on a H200, and without a plan."""
        rows = (sum(batch.query_lens) - plan.decodes) / plan.prefills
        programs = plan.tiles * self.shape.kv_heads
        middling = rows < LONG_QUERIES and rows * self.shape.group > SHORT_ROWS
        return self._hopper and middling and programs >= FULL_ROUNDS * self._processors

    def _plan_prefills(self, batch: StepBatch, decodes: int) -> dict[int | None, PlannedKernel]:
        runs = self._prefill_runs.prefills(batch, decodes)
        long = self._hopper and runs.rows / len(runs.last) >= LONG_QUERIES
        backend = "fa3" if long else "fa2"
        return {
            window: planner.plan(backend, self._modules[self._kind(backend, window)], runs, True, window)
            for window, planner in self._prefill.items()
        }

    def _plan_shared(self, batch: StepBatch, decodes: int) -> SharedPrefixPlan | None:
        if self._shared is None or decodes < LEAST_SEQUENCES:
            return None
        prefix = self._finder.find(batch.context_slots[:decodes])
        if prefix is None or prefix.pages > self._most_shared:
            return None
        return self._plan_prefix(self._shared, batch, prefix)

    def _plan_prefix(self, planner: KernelPlanner, batch: StepBatch, prefix: SharedPrefix) -> SharedPrefixPlan:
        assert batch.device is not None
        runs, skip = self._shared_runs.shared(batch, prefix)
        module = self._modules[self._kind("fa2", None)]
        return SharedPrefixPlan(planner.plan("fa2", module, runs, False, None, batch.device.static), skip)

    def _explain(self) -> str:
        long = f", fa3 from {LONG_QUERIES} queries a sequence" if self._hopper else ""
        shared = "" if self._shared is None else " and shared prefixes"
        return f"Triton's kernel for decodes, flashinfer's (fa2{long}) for prefills{shared}"

    @property
    def _backends(self) -> tuple[str, ...]:
        return ("fa2", "fa3") if self._hopper else ("fa2",)

    def _kind(self, backend: str, window: int | None) -> FlashInferModule:
        capped = self.shape.softcap is not None
        return FlashInferModule(
            backend, self._query_dtype, self.pool.k.dtype, self.shape.head_dim, window is not None, capped
        )

    def _paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """The pool of a layer as [pages, page_size, kv_heads, head_dim]."""
        if self._viewed is not self.pool.k:
            self._viewed = self.pool.k
            whole = self.pool.slots // self.page_size * self.page_size
            self._pages = [
                (k[:whole].unflatten(0, (-1, self.page_size)), v[:whole].unflatten(0, (-1, self.page_size)))
                for k, v in map(self.stored, range(self.shape.layers))
            ]
        return self._pages[layer]

    @torch.inference_mode()
    def _prove(self) -> None:
        """Run every kernel once, on the padding slot: what cannot run here fails now."""
        started = time.perf_counter()
        try:
            for lengths in ([2], [LONG_QUERIES]):
                batch = _empty_batch(lengths, self.page_size, self.pool.k.device)
                self._prove_step(batch, FlashInferPlan(0, self._plan_prefills(batch, 0)))
            if self._shared is not None:
                batch = _empty_batch([1] * LEAST_SEQUENCES, self.page_size, self.pool.k.device)
                nobody = SharedPrefix(0, 1, np.zeros(LEAST_SEQUENCES, bool))
                self._prove_step(
                    batch, FlashInferPlan(LEAST_SEQUENCES, shared=self._plan_prefix(self._shared, batch, nobody))
                )
        except Exception as error:
            raise BackendUnavailable(f"flashinfer's kernels fail here: {modules.first_line(error)}") from error
        modules.log.info("flashinfer's kernels are ready in %.1f s", time.perf_counter() - started)

    def _prove_step(self, batch: StepBatch, step: FlashInferPlan) -> None:
        batch.plan = step
        size = sum(batch.query_lens), self.shape.query_heads, self.shape.head_dim
        q = torch.zeros(size, dtype=self._query_dtype, device=self.pool.k.device)
        for window in self._windows:
            self.attend(q, None, None, self.shape.windows.index(window), batch)
        if q.is_cuda:
            torch.cuda.synchronize(q.device)


def _sink(out: Tensor, lse: Tensor | None, sinks: Tensor | None) -> None:
    """Give each head's sink its share of the weight. lse: of the keys' weights, [rows, query_heads], to base 2."""
    if lse is not None and sinks is not None:
        out.mul_(torch.sigmoid(lse * math.log(2) - sinks)[..., None])


def _check(pool: KVPool, shape: AttentionShape, deterministic: bool) -> None:
    if deterministic:
        raise BackendUnavailable("flashinfer's results depend on the rest of the batch; use attention='triton'")
    if shape.latent:
        raise BackendUnavailable(
            "flashinfer compiles its kernels for latent attention on first use, which needs nvcc: they are not used"
        )
    if shape.head_dim not in HEAD_DIMS:
        raise BackendUnavailable(f"flashinfer has head_dim {', '.join(map(str, HEAD_DIMS))}, not {shape.head_dim}")
    if shape.value_dim != shape.head_dim:
        raise BackendUnavailable(f"flashinfer has values as wide as keys, not {shape.value_dim} and {shape.head_dim}")
    if any(shape.chunks):
        raise BackendUnavailable("flashinfer has no chunks of positions")
    if shape.alibi:
        raise BackendUnavailable("flashinfer's kernels are compiled here without ALiBi")
    if pool.k.dtype not in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        raise BackendUnavailable(f"flashinfer has keys in bfloat16, float16 or float8_e4m3fn, not {pool.k.dtype}")


def _machine(device: torch.device) -> tuple[int, int]:
    """Major compute capability and multiprocessors."""
    if device.type != "cuda":
        raise BackendUnavailable(f"flashinfer needs a CUDA device, not {device}")
    found = torch.cuda.get_device_properties(device)
    if found.major < 8:
        raise BackendUnavailable(
            f"flashinfer needs compute capability 8.0, {found.name} has {found.major}.{found.minor}"
        )
    return found.major, found.multi_processor_count


def _empty_batch(lengths: list[int], page_size: int, device: torch.device) -> StepBatch:
    """Sequences of new tokens only, all in the padding slot."""
    tokens = sum(lengths)
    zeros = torch.zeros(tokens, dtype=torch.int32, device=device)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    contexts = torch.tensor(lengths, dtype=torch.int32, device=device)
    table = torch.zeros(1, -(-max(lengths) // page_size), dtype=torch.int32, device=device)
    rows = zeros.new_zeros(len(lengths))
    around = DeviceBatch(rows, zeros, starts, contexts, table, page_size, zeros[:1])
    slots = [zeros.new_zeros(length).cpu().numpy() for length in lengths]
    return StepBatch(zeros, zeros, zeros, lengths, list(lengths), slots, zeros, device=around)
