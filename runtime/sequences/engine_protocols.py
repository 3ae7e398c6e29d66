"""What a handle on a sequence asks of its engine, from any thread.

`loop.EngineCore`, `process.RemoteCore` and `replicas.ReplicasCore` have these methods, and those that an engine asks
for: `build.serving_core.ServingCore`. `sequence_state.SequenceEngine` is what operations ask of the engine on the
scheduler thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from .sequence_options import SequenceOptions
from .sequence_state import SequenceOp, SequenceStatus


class HandleState(Protocol):
    """What a handle reads of the state that its core gave it."""

    @property
    def id(self) -> int: ...
    @property
    def terms(self) -> SequenceOptions: ...


class SequenceCore(Protocol):
    """The core of an engine as handles see it. A core takes only states that its own `new_state` returned."""

    def new_state(self, terms: SequenceOptions, status: SequenceStatus = ...) -> HandleState:
        """The state of a new sequence, which has no tokens."""
        ...

    def adapter_digest(self, name: str) -> str:
        """Of a loaded adapter. Raises ConfigError for a name that is not loaded."""
        ...

    def submit(self, seq: Any, op: SequenceOp) -> Future[Any]:
        """Queues an operation; returns its future."""
        ...

    def abort(self, seq: Any) -> None:
        """Fails the running and queued operations of a sequence with RequestAborted."""
        ...
