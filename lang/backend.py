"""What a place that runs models must offer: a `Backend` opens a `Stream` for each state of a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from .chat import ChatTemplate, get_chat_template
from .errors import UnsupportedByBackendError
from .places.source_location import SourceLocation
from .sampling.choices import ChoicesDecision, ChoicesSamplingMethod
from .sampling.options import SamplingOptions


@dataclass(frozen=True, slots=True)
class GenRequest:
    """One generation: resolved options (no None where a default exists) and the stops of the template.

    Without `max_new_tokens` (None) the text may continue to the end of its grammar, or of the context. A text that
    a limit ends has the `finish_reason` {"type": "length", "length": n} in its meta_info; `truncated` says whether more
    could have followed.
    `name` and `where` say which variable it makes and on which line of the program. `keep` turns the finished
    text into what stays of it in the stream (None: all of it); the result still has the whole text.
    """

    options: SamplingOptions
    template_stops: tuple[str, ...] = ()
    name: str | None = None
    where: SourceLocation | None = None
    keep: Callable[[str], str] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return self.options.stops + self.template_stops


@dataclass(frozen=True, slots=True)
class SelectRequest:
    """One choice among texts. With `temperature` above 0 it is drawn, by `seed` if that is given.

    A choice that is a `QuotedText` is quoted where that says so, as appended text is. `end` is scored after each choice
    and not appended: the text that ends the turn, for methods that ask for it.
    """

    choices: list[str]
    method: ChoicesSamplingMethod
    temperature: float = 0.0
    name: str | None = None
    where: SourceLocation | None = None
    seed: int | None = None
    end: str = ""

    @property
    def scored(self) -> list[str]:
        """What is scored: each choice, with the end of the turn where that counts."""
        return [choice + self.end for choice in self.choices] if self.end else self.choices

    def as_given(self, decision: str) -> str:
        """The choice that was decided for, as what it is to be appended."""
        return next((choice for choice in self.choices if choice == decision), decision)


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or film in a prompt. `source`: a path, a URL, bytes or a PIL image; `num_frames` of a film."""

    kind: Literal["image", "video"]
    source: Any
    num_frames: int | None = None


@dataclass(slots=True)
class Generated:
    """The text that a generation appended to its stream, its meta_info, and its tokens where they are known."""

    text: str
    meta_info: dict[str, Any] = field(default_factory=dict)
    token_ids: list[int] | None = None


OnChunk = Callable[[Generated], None]


class Stream(ABC):
    """The text of one state at a backend. Every method queues work and returns at once.

    Operations take effect in the order in which they were queued. When one fails, those after it fail with
    the same error or have no effect. Dropping the last reference gives the stream's resources back, after
    what was queued.
    """

    @abstractmethod
    def append(self, text: str) -> None:
        """Add literal text. Of a `QuotedText` the quoted stretches must not become special tokens."""

    def begin_turn(self, role: str, prefix: str) -> None:
        """A turn opens with the template's `prefix`. Backends that think in messages override this."""
        self.append(prefix)

    def end_turn(self, role: str, suffix: str) -> None:
        """The open turn ends with the template's `suffix`."""
        self.append(suffix)

    def attach(self, media: Media, token: str) -> None:
        """Add a picture or film; `token` is the text that stands for it in the template."""
        raise UnsupportedByBackendError(f"{type(self).__name__} does not accept {media.kind}s; use a backend that does")

    def restore(self, generated: Generated) -> None:
        """Add what a generation made in an earlier run, with its own tokens where the stream has tokens."""
        self.append(generated.text)

    @abstractmethod
    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        """Let the model write. `on_chunk` gets pieces of text (never blocks; any thread).

        What is wrong with the request itself (a bad schema, a bad option) is raised here, at once.
        """

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        """Append the best of the choices."""
        raise UnsupportedByBackendError(f"{type(self).__name__} cannot select; use gen with a regex or another backend")

    @abstractmethod
    def fork(self, size: int) -> list[Stream]:
        """`size` streams that continue from here, each by itself."""

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        """A stream for each adapter (LoRA), None for the base: they share the text so far, and compute it again where
        theirs is another one than this stream's."""
        raise _no_adapters(self, adapters)

    def prefill(self) -> Future[None]:
        """Have the text so far computed and cached."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @abstractmethod
    def close(self) -> None:
        """No more operations follow; give the resources back when the queued ones are done."""

    def abort(self) -> None:
        """Fail what is running and queued, soon, and take nothing more. Then `close` gives the resources back."""
        return None


class Backend(ABC):
    """Opens streams. One backend serves any number of programs and threads."""

    chat_template: ChatTemplate = get_chat_template("default")
    takes_seed = True  # False: a gen with a seed is refused, so that a journal draws none
    masks_logprobs = False  # True: it takes masked_logprobs

    @abstractmethod
    def open(self) -> Stream:
        """A new, empty stream."""

    def open_adapted(self, adapter: str) -> Stream:
        """A new, empty stream that the model computes with the adapter (LoRA) of that name."""
        raise _no_adapters(self, [adapter])

    def open_speculating(self, num_api_spec_tokens: int) -> Stream:
        """A stream that may ask for more text than a gen wants and serve what follows from the rest.

        That saves calls to a remote API; where a call costs nothing, it is an ordinary stream.
        """
        return self.open()

    def for_item(self, index: int) -> Backend:
        """What item `index` of a batch runs on: this backend, unless it distinguishes items."""
        return self

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

    def prepare(self, options: SamplingOptions) -> None:
        """Compile ahead what a gen with these options needs. Raises what the gen would raise."""
        return None

    def token_texts(self, token_ids: Sequence[int]) -> list[str] | None:
        """The text of each token, for reports of a run; None where there are no tokens."""
        return None

    def flush_cache(self) -> Any:
        """Drop all cached prefixes. False if the backend has no cache."""
        return False

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": self.get_model_name()}

    def shutdown(self) -> None:
        """Release the backend's resources."""
        return None


def _no_adapters(what: Stream | Backend, adapters: Sequence[str | None]) -> UnsupportedByBackendError:
    names = ", ".join(repr(adapter) for adapter in dict.fromkeys(adapters))
    return UnsupportedByBackendError(
        f"{type(what).__name__} has no adapters (asked for: {names}); run on an sgl.Engine that has them loaded. A "
        "server that has some takes one as the name of its model"
    )
