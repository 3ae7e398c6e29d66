"""What an engine asks of its core, in whatever process that runs."""

from __future__ import annotations

from typing import Any, Protocol

from ..sequences.engine_protocols import SequenceCore
from ..watch.engine_stats import Stats


class ServingCore(SequenceCore, Protocol):
    """`loop.EngineCore`, `process.RemoteCore` and `replicas.ReplicasCore` have these methods, which are thread-safe."""

    @property
    def up(self) -> bool:
        """Whether it takes operations."""
        ...

    @property
    def asleep(self) -> bool: ...

    def ask(self, name: str, *args: Any) -> Any:
        """What `EngineCore.answer` returns, between two steps. Raises what it raises, and EngineDied."""
        ...

    def adapt(self, name: str, *args: Any) -> Any:
        """What a method of `AdapterManager` returns. Raises ConfigError where the engine takes no adapters."""
        ...

    def snapshot(self) -> Stats:
        """The counters at once; some may lag one step."""
        ...

    def touched(self) -> int:
        """Bytes of keys, values and states that the system has given by now; see `lazy_zeros`."""
        ...

    def stop(self) -> None:
        """Fail all that waits and end the threads. Idempotent."""
        ...

    def forget(self) -> None:
        """Once stopped: hold nothing that handles, which may outlive the engine, would keep in memory."""
        ...
