"""Attention by flashinfer's kernels: decodes at the memory's speed, inside CUDA graphs too, and long prefills.

A decode step whose sequences share a long prefix of pages attends the prefix once, for all queries together, and
merges that with what each sequence sees of its own.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch, DeviceBatch
from ..executor.kv import PAD_SLOT, KVPool
from ..kernels.merge_attention import merge_attention
from . import flashinfer_modules as modules
from .base import AttentionShape, BackendUnavailable
from .flashinfer_kernel import LARGE, SMALL, Planned, Planner, Setup, float_bytes
from .flashinfer_modules import Kind
from .page_runs import PageRuns
from .shared_prefix import PrefixFinder

HEAD_DIMS = (64, 128, 256)
LONG_QUERIES = 128  # mean queries of a step's prefills from which Hopper's own kernels are faster
Part = tuple[slice, Planned]


@dataclass(frozen=True, slots=True)
class Step:
    """parts: by window, which queries a kernel attends.  prefix: the kernel of the shared prefix.

    own: int32 [sequences], above 0 where the prefix counts.
    """

    parts: dict[int | None, list[Part]]
    prefix: Planned | None = None
    own: Tensor | None = None


class FlashInferAttention:
    """See `AttentionBackend`. Raises BackendUnavailable at once if the kernels do not run here.

    page_size: slots of a page.  max_running: most sequences of a step.  context: most tokens of one, for the
    first size of a buffer.  The tensors of a batch and of its `device` must be filled before `plan`.
    workspace_bytes: device memory taken beside the pool.
    """

    name, reason = "flashinfer", "asked for"
    capturable = True

    def __init__(
        self,
        pool: KVPool,
        shape: AttentionShape,
        page_size: int = 1,
        max_running: int = 256,
        context: int = 8192,
        deterministic: bool = False,
    ) -> None:
        _check(pool, shape, deterministic)
        self.pool, self.shape, self.page_size = pool, shape, page_size
        self._query_dtype = pool.k.dtype if pool.k.dtype.itemsize == 2 else torch.bfloat16
        device = pool.k.device
        major, processors = _machine(device)
        self._hopper = major == 9 and pool.k.dtype.itemsize == 2
        self._windows = list(dict.fromkeys(shape.windows))
        kinds = [self._kind(backend, window) for backend in self._backends for window in self._windows]
        self._modules = modules.load(list(dict.fromkeys(kinds)))
        sequences = max(2, 1 << (max_running - 1).bit_length())
        floats = torch.empty(float_bytes(shape, sequences, processors), dtype=torch.uint8, device=device)
        setup = Setup(shape, page_size, floats, early_launch=major >= 9)
        self._decode = {window: Planner(setup, SMALL) for window in self._windows}
        self._prefill = {window: Planner(setup, LARGE) for window in self._windows}
        self._shared = Planner(setup, SMALL) if self._windows == [None] else None
        self._runs = PageRuns(page_size, sequences, context, device)
        self._finder = PrefixFinder(page_size)
        self._viewed: Tensor | None = None
        self._prove()

    @property
    def workspace_bytes(self) -> int:
        planners = [*self._decode.values(), *self._prefill.values(), *filter(None, [self._shared])]
        return planners[0].setup.floats.nbytes + sum(p.integers.nbytes for p in planners) + self._runs.nbytes

    def variant(self, batch: Batch) -> Hashable:
        """Which graph the planned static batch needs, beside its size: one for each variant; None is the usual one.

        Steps with a shared prefix launch other kernels, and graphs captured before a buffer grew read the old one.
        """
        step: Step = batch.plan
        generation, shared = self._runs.generation, step.prefix is not None
        return (generation, shared) if generation or shared else None

    @torch.inference_mode()
    def plan(self, batch: Batch) -> None:
        decodes, sequences = _decodes(batch.query_lens), len(batch.query_lens)
        graph = batch.device is not None and batch.device.static
        prefix = None
        if decodes == sequences and self._shared is not None:
            prefix = self._finder.find(batch.context_slots)
        self._runs.lay(batch, decodes, prefix)
        parts = {window: self._parts(batch, decodes, window, graph) for window in self._windows}
        if prefix is None or self._shared is None:
            batch.plan = Step(parts)
            return
        module = self._modules[self._kind("fa2", None)]
        shared = self._shared.plan("fa2", module, self._runs.shared(sequences), False, None, graph)
        batch.plan = Step(parts, shared, self._runs.first[:sequences])

    def store(self, k: Tensor, v: Tensor, layer: int, batch: Batch) -> None:
        slots, pool = batch.slots.long(), self.pool
        for values, place, scale in ((k, pool.k, _scale(pool, "k")), (v, pool.v, _scale(pool, "v"))):
            if place.dtype != values.dtype:
                limit = torch.finfo(place.dtype).max
                values = (values / scale).clamp(-limit, limit).to(place.dtype).view(torch.uint8)
                place = place.view(torch.uint8)
            place[layer].index_copy_(0, slots, values)
            if batch.device is not None and batch.device.static:
                place[layer, PAD_SLOT].zero_()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, batch: Batch) -> Tensor:
        step: Step = batch.plan
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        pool, scale = self._paged(layer), self.shape.scale * _scale(self.pool, "k")
        if step.prefix is not None and step.own is not None:
            self._attend_shared(step.prefix, step, q, pool, scale, out)
        else:
            for rows, planned in step.parts[self.shape.windows[layer]]:
                planned.run(q[rows], pool, scale, out[rows])
        if _scale(self.pool, "v") != 1:
            out.mul_(_scale(self.pool, "v"))
        return out

    def _attend_shared(
        self, prefix: Planned, step: Step, q: Tensor, pool: tuple[Tensor, Tensor], scale: float, out: Tensor
    ) -> None:
        assert step.own is not None
        ((_, own),) = step.parts[None]
        lse, shared_lse = torch.empty(2, *q.shape[:2], dtype=torch.float32, device=q.device)
        shared = torch.empty_like(out)
        prefix.run(q, pool, scale, shared, shared_lse)
        own.run(q, pool, scale, out, lse)
        merge_attention(out, lse, shared, shared_lse, step.own)

    def _parts(self, batch: Batch, decodes: int, window: int | None, graph: bool) -> list[Part]:
        sequences, tokens = len(batch.query_lens), sum(batch.query_lens)
        parts: list[Part] = []
        if decodes:
            module = self._modules[self._kind("fa2", window)]
            runs = self._runs.decodes(0, decodes)
            parts.append((slice(0, decodes), self._decode[window].plan("fa2", module, runs, False, window, graph)))
        if decodes < sequences:
            long = (tokens - decodes) / (sequences - decodes) >= LONG_QUERIES
            backend = "fa3" if long and self._hopper else "fa2"
            runs = self._runs.prefills(decodes, sequences, tokens - decodes)
            module = self._modules[self._kind(backend, window)]
            planned = self._prefill[window].plan(backend, module, runs, True, window)
            parts.append((slice(decodes, tokens), planned))
        return parts

    @property
    def _backends(self) -> tuple[str, ...]:
        return ("fa2", "fa3") if self._hopper else ("fa2",)

    def _kind(self, backend: str, window: int | None) -> Kind:
        return Kind(backend, self._query_dtype, self.pool.k.dtype, self.shape.head_dim, window is not None)

    def _paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """The pool of a layer as [pages, page_size, kv_heads, head_dim]."""
        if self._viewed is not self.pool.k:
            self._viewed = self.pool.k
            whole = self.pool.slots // self.page_size * self.page_size
            self._pages = [
                (k[:whole].unflatten(0, (-1, self.page_size)), v[:whole].unflatten(0, (-1, self.page_size)))
                for k, v in zip(self.pool.k.unbind(0), self.pool.v.unbind(0), strict=True)
            ]
        return self._pages[layer]

    def _prove(self) -> None:
        """Every kernel once, on the padding slot: what cannot run here says so now."""
        started = time.perf_counter()
        try:
            for lengths in ([1, 2], [LONG_QUERIES]):
                batch = _empty_batch(lengths, self.page_size, self.pool.k.device)
                self.plan(batch)
                q = torch.zeros(
                    sum(lengths), self.shape.query_heads, self.shape.head_dim,
                    dtype=self._query_dtype, device=self.pool.k.device,
                )  # fmt: skip
                for window in self._windows:
                    self.attend(q, q, q, self.shape.windows.index(window), batch)
            if q.is_cuda:
                torch.cuda.synchronize(q.device)
        except Exception as error:
            raise BackendUnavailable(f"flashinfer's kernels fail here: {modules.first_line(error)}") from error
        modules.log.info("flashinfer's kernels are ready in %.1f s", time.perf_counter() - started)


def _check(pool: KVPool, shape: AttentionShape, deterministic: bool) -> None:
    if deterministic:
        raise BackendUnavailable("flashinfer's results depend on the rest of the batch; use attention='triton'")
    if shape.head_dim not in HEAD_DIMS:
        raise BackendUnavailable(f"flashinfer has head_dim {', '.join(map(str, HEAD_DIMS))}, not {shape.head_dim}")
    if pool.k.dtype not in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        raise BackendUnavailable(f"flashinfer has keys in bfloat16, float16 or float8_e4m3fn, not {pool.k.dtype}")


def _machine(device: torch.device) -> tuple[int, int]:
    """Major compute capability and multiprocessors."""
    if device.type != "cuda":
        raise BackendUnavailable(f"flashinfer needs a CUDA device, not {device}")
    found = torch.cuda.get_device_properties(device)
    if found.major < 8:
        raise BackendUnavailable(f"flashinfer needs compute capability 8.0, {found.name} has {found.major}.{found.minor}")
    return found.major, found.multi_processor_count


def _decodes(query_lens: list[int]) -> int:
    """How many sequences with one query come first."""
    return next((index for index, queries in enumerate(query_lens) if queries > 1), len(query_lens))


def _scale(pool: KVPool, which: str) -> float:
    return float(getattr(pool, f"{which}_scale", 1.0))


def _empty_batch(lengths: list[int], page_size: int, device: torch.device) -> Batch:
    """Sequences of new tokens only, all in the padding slot."""
    tokens = sum(lengths)
    zeros = torch.zeros(tokens, dtype=torch.int32, device=device)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    contexts = torch.tensor(lengths, dtype=torch.int32, device=device)
    table = torch.zeros(1, -(-max(lengths) // page_size), dtype=torch.int32, device=device)
    rows = zeros.new_zeros(len(lengths))
    around = DeviceBatch(rows, zeros, starts, contexts, table, page_size, zeros[:1])
    slots = [zeros.new_zeros(length).cpu().numpy() for length in lengths]
    return Batch(zeros, zeros, zeros, lengths, list(lengths), slots, zeros, device=around)
