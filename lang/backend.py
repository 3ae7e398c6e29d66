"""What a place that runs models must offer: a `Backend` opens a `Stream` for each state of a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from .chat import ChatTemplate, get_chat_template
from .choices import ChoicesDecision, ChoicesSamplingMethod
from .errors import UnsupportedByBackendError
from .options import SamplingOptions


@dataclass(frozen=True, slots=True)
class GenRequest:
    """One generation: resolved options (no None where a default exists) and the stops of the template."""

    options: SamplingOptions
    template_stops: tuple[str, ...] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        return self.options.stops + self.template_stops


@dataclass(frozen=True, slots=True)
class SelectRequest:
    choices: list[str]
    method: ChoicesSamplingMethod
    temperature: float = 0.0


@dataclass(slots=True)
class Generated:
    """The text that a generation appended to its stream, and its meta_info."""

    text: str
    meta_info: dict[str, Any] = field(default_factory=dict)


OnChunk = Callable[[Generated], None]


class Stream(ABC):
    """The text of one state at a backend. Every method queues work and returns at once.

    Operations take effect in the order in which they were queued. When one fails, those behind it fail with
    the same error or have no effect. Dropping the last reference gives the stream's resources back, after
    what was queued.
    """

    @abstractmethod
    def append(self, text: str) -> None:
        """Add literal text."""

    def begin_turn(self, role: str, prefix: str) -> None:
        """A turn opens with the template's `prefix`. Backends that think in messages override this."""
        self.append(prefix)

    def end_turn(self, role: str, suffix: str) -> None:
        """The open turn ends with the template's `suffix`."""
        self.append(suffix)

    @abstractmethod
    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        """Let the model write. `on_chunk` gets pieces of text (never blocks; any thread).

        What is wrong with the request itself (a bad schema, a bad option) is raised here, at once.
        """

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        """Append the best of the choices."""
        raise UnsupportedByBackendError(
            f"{type(self).__name__} cannot select; use gen with a regex or another backend"
        )

    @abstractmethod
    def fork(self, size: int) -> list[Stream]:
        """`size` streams that go on from here, each for itself."""

    def prefill(self) -> Future[None]:
        """Have the text so far computed and cached."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @abstractmethod
    def close(self) -> None:
        """No more operations follow; give the resources back when the queued ones are done."""


class Backend(ABC):
    """Opens streams. One backend serves any number of programs and threads."""

    chat_template: ChatTemplate = get_chat_template("default")

    @abstractmethod
    def open(self) -> Stream:
        """A new, empty stream."""

    def get_model_name(self) -> str:
        return type(self).__name__

    def get_chat_template(self) -> ChatTemplate:
        return self.chat_template

    def cache_prefix(self, text: str) -> None:
        """Compute `text` as the start of a prompt and keep it in the cache. Blocks."""
        stream = self.open()
        stream.append(text)
        stream.prefill().result()
        stream.close()

    def flush_cache(self) -> Any:
        """Forget all cached prefixes. False where there is nothing to forget."""
        return False

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": self.get_model_name()}

    def shutdown(self) -> None:
        """Give back what the backend holds."""
        return None
