"""What the loop needs of a runner, which computes the steps of a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..adapters.batch_adapters import BatchAdapters
    from ..attention.backend_protocols import AttentionBackend
    from ..cache import WindowPageTable
    from ..cache.recurrent_state_memory import RecurrentStateMemory
    from ..models.transformers_backend import AnyDecoder
    from ..parallel.ep.expert_balance import ExpertBalancer
    from ..parallel.workers.worker_group import RankGroup
    from ..sequences.sequence_state import ScheduledWork, SequenceState
    from ..step.step_batch import StepBatch
    from .ranks.stage_steps import PipelineTimer

# Computes a step on a runner, as `Runner.forward` describes it. `EagerRunner.compute` and `CudaRunner.compute` do; the
# others wrap such a one: they are given it, and call it.
Steps: TypeAlias = "Callable[[Any, list[ScheduledWork]], Tensor | None]"
# Called before a batch is computed, of which so many tokens are no padding.
EnterStage: TypeAlias = "Callable[[StepBatch, int], None]"


class Runner(Protocol):
    """`EagerRunner` on any device, or `CudaRunner`. The scheduler thread calls the methods, within `on_device`.

    steps: what `forward` calls. Who wants more of each step wraps it: what sends it to other ranks, cuts it for the
        stages of a pipeline, or observes it.
    sums: float32 [pools, hidden], of the newest step, in the order of the plan; None where it pooled nothing.
    adapters: where the rows of sequences with one find it; None: the engine takes none.
    team: the other ranks; None: there are none.
    experts: which rank has which experts, where they are whole on ranks.
    pipeline: what the stages have done, of several on CPUs.
    """

    steps: Steps
    sums: Tensor | None
    adapters: BatchAdapters | None
    team: RankGroup | None
    experts: ExpertBalancer | None
    pipeline: PipelineTimer | None

    @property
    def model(self) -> AnyDecoder: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def vocab_size(self) -> int:
        """Of the model, whose logits are as wide."""
        ...

    @property
    def last(self) -> Tensor | None:
        """int32 [rows], the token sampled last for each row, where a step that runs ahead finds its input.

        None where no step runs ahead.
        """
        ...

    @property
    def memory(self) -> RecurrentStateMemory | None:
        """Of the states, of a model that keeps some."""
        ...

    @property
    def windows(self) -> WindowPageTable | None:
        """Where the rows of windowed layers are, of a model that keeps these apart."""
        ...

    def on_device(self) -> AbstractContextManager[object]:
        """Where the scheduler thread runs: what it queues on the device is in the order of the steps."""
        ...

    def warm_up(self) -> bool:
        """While no request waits: do a little of what later steps will need. False: nothing is left."""
        ...

    def waited(self) -> tuple[float, float]:
        """Seconds of steps that went into compiling kernels, and into capturing graphs."""
        ...

    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        """Start computing the tokens of `work`; logits [rows, vocabulary] of the rows that its operations want.

        float32 on the CPU, the model's dtype on a GPU, where they may still be in the making. They are valid until the
        next forward. None where `work` is empty.
        """
        ...

    def places(self, seqs: list[SequenceState]) -> list[int] | None:
        """Where in `last` the next tokens of these sequences of the newest step belong; None where that is None."""
        ...

    def index(self, rows: list[int]) -> Tensor:
        """Row numbers on the device, as integers [rows]."""
        ...

    def release(self) -> None:
        """Let go of the attention and with it of the KV pool, and of other buffers on the device, until `restore`."""
        ...

    def restore(self, attention: AttentionBackend) -> None:
        """Compute again. Raises OutOfMemoryError, holding nothing, where there is no room."""
        ...

    def close(self) -> None:
        """Let go of what the device holds, and end the other ranks: no step follows."""
        ...


class GraphRunner(Runner, Protocol):
    """A runner that pads steps to few sizes and captures them as graphs, as warm-up steps need it: `CudaRunner`."""

    @property
    def rows(self) -> int:
        """Sequences that a step has at most."""
        ...

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        ...

    @property
    def decode_sizes(self) -> list[int]:
        """Numbers of decoding sequences that steps are padded to."""
        ...

    @property
    def mixed_sizes(self) -> tuple[int, ...]:
        """Numbers of new tokens that other steps are padded to, up to where they are not."""
        ...

    def capture_mixed(self) -> Iterator[None]:
        """Captures the graphs of all `mixed_sizes`, a piece between two items."""
        ...
