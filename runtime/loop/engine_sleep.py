"""Giving the device's memory to somebody else for a while, without ending the engine."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..attention import AttentionBackend
from ..cache.multi_width_kv_pools import Pool
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..errors import RuntimeFailure
from ..executor.weight_offload import OffloadedWeights, tensors_of
from ..memory.memory_sizes import free_memory
from ..watch.gather_stats import expert_stats
from .engine_core import EngineCore


class SleepingDraft(Protocol):
    """A draft model or head, as its engine puts it to sleep with itself."""

    @property
    def model(self) -> object:
        """Holds its weights, see `tensors_of`."""
        ...

    @property
    def pool(self) -> Pool:
        """Its keys and values."""
        ...

    def let_go(self) -> None:
        """Frees what it computes with and forgets what it has computed, until `restore`."""
        ...

    def restore(self) -> None:
        """Computes again, with the memory that came back."""
        ...


class EngineSleeper:
    """Puts the device's side of an engine to sleep. `sleep` and `wake` run on the scheduler thread."""

    def __init__(
        self,
        core: EngineCore,
        pool: Pool,
        make_attention: Callable[[], AttentionBackend],
        draft: SleepingDraft | None = None,
    ) -> None:
        self._core, self._pool, self._make_attention, self._draft = core, pool, make_attention, draft
        self._weights: OffloadedWeights | None = None
        # what was counted of them, while the counts are not on the device; see `expert_stats`
        self.experts: dict[str, Any] | None = None
        self.asleep = False

    def sleep(self) -> int:
        """Take every page back, then free pool, buffers and the weights' device memory; returns the bytes freed."""
        if self.asleep:
            return 0
        core, before = self._core, self._held()
        if core.halted:
            raise RuntimeFailure(
                "sleep(): an update of the weights broke off, and the engine computes nothing until update_weights "
                "succeeds; call that, or open a new one"
            )
        tensors = [
            tensor
            for tensor in tensors_of([core.runner.model, self._draft and self._draft.model])
            if tensor.device.type not in ("cpu", "meta")
        ]
        _check_room(tensors)
        try:
            core.pause()
            self.experts = expert_stats(core.runner) if tensors else None
            self._weights = OffloadedWeights(tensors)
        except BaseException:
            self.experts = None
            core.resume()  # nothing is released yet
            raise
        if core.runner.team is not None:
            core.runner.team.sleep()
        core.runner.release()
        if self._draft is not None:
            self._draft.let_go()
        self._release()
        self.asleep = True
        return before - self._held()

    def wake(self) -> None:
        """Bring everything back and go on with what waits. Raises RuntimeFailure, still asleep, without room."""
        if not self.asleep or self._weights is None:
            return
        try:
            self._pool.restore()
            if self._core.runner.memory is not None:
                self._core.runner.memory.restore()
            self._weights.restore()
            if self._draft is not None:
                self._draft.pool.restore()
                self._draft.restore()
            if self._core.runner.team is not None:
                self._core.runner.team.wake()
            self._core.runner.restore(self._make_attention())
        except Exception as error:
            self._release()
            self._weights.release()
            if not isinstance(error, torch.OutOfMemoryError):
                raise
            raise RuntimeFailure(f"no room to wake up ({error}); free memory on the device and wake again") from error
        self._weights, self.experts, self.asleep = None, None, False
        self._core.resume()

    def _release(self) -> None:
        self._pool.release()
        if self._core.runner.memory is not None:
            self._core.runner.memory.release()
        if self._draft is not None:
            self._draft.pool.release()

    def forget(self) -> None:
        """The engine is closed: it will not be woken, and nothing here may keep its memory."""
        for name in ("_pool", "_make_attention", "_weights", "_draft"):
            vars(self).pop(name, None)

    def _held(self) -> int:
        """Bytes that this engine (on a GPU: this process) takes of the device, and the other ranks of theirs."""
        team = self._core.runner.team
        return self._own() + sum(() if team is None else team.ask("held"))

    def _own(self) -> int:
        device = self._pool.device
        if device.type == "cuda":
            gc.collect()  # captured steps are cycles that hold the pool
            torch.cuda.empty_cache()
            return torch.cuda.memory_reserved(device)
        return sum(memory.bytes for memory in self._memories())

    def touched(self) -> int:
        """Bytes of keys, values and states that the system has given by now. Any thread may ask."""
        return sum(memory.touched for memory in self._memories()) if "_pool" in vars(self) else 0

    def _memories(self) -> list[Pool | RecurrentStateMemory]:
        """What is taken whole and filled slot by slot."""
        states, draft = self._core.runner.memory, self._draft
        return [self._pool, *(() if states is None else (states,)), *(() if draft is None else (draft.pool,))]


def _check_room(tensors: list[torch.Tensor]) -> None:
    size = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
    if size > (free := free_memory()):
        raise RuntimeFailure(
            f"sleep keeps {size / 1e9:.2f} GB of weights in main memory, where {free / 1e9:.2f} GB are free; "
            "close the engine instead, or free main memory"
        )
