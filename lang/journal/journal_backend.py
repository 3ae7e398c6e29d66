"""A backend that records what another one does, and serves what is recorded."""

from __future__ import annotations

import secrets
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from ..backend import Backend, Stream
from ..backends.default_backend import resolve_backend
from ..chat import ChatTemplate, ChatTemplateStyle, Messages
from ..errors import BadValueError, JournalError, ReplayMismatch
from ..places.source_location import SourceLocation, caller_place
from ..sampling.options import SamplingOptions
from .journal import Journal
from .journal_node import JournalNode
from .journal_stream import JournalStream
from .replay_session import ReplaySession


class JournalCounts(NamedTuple):
    """How many nodes came from a journal, and how many were computed and added to it."""

    served: int
    computed: int

    def __str__(self) -> str:
        return f"{self.served:,} nodes from the journal, {self.computed:,} computed"


class JournalBackend(Backend):
    """What `sgl.journal`, `sgl.record`, `sgl.resume` and `sgl.replay` give: run programs with `backend=` this.

    `served` are the nodes that came from the journal, `computed` those that were made and added to it. As a
    context manager it waits at the end for what is still being made, and closes the file.
    """

    def __init__(self, session: ReplaySession, item: int = 0) -> None:
        self._session = session
        self._item = item
        inner = session.inner
        self.masks_logprobs = inner.masks_logprobs if inner else bool(self.journal.header.get("masks_logprobs"))

    def __enter__(self) -> JournalBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        try:
            self._session.close(wait=kind is None or issubclass(kind, Exception))
        except JournalError:
            if kind is None:
                raise
        if kind is None and self._session.inner is not None and not any(self.counts):
            warnings.warn(
                f"no program ran on the journal {self.journal.path}; give it to those that shall: "
                "program.run(backend=journal)",
                stacklevel=2,
            )

    def close(self) -> None:
        """Wait for running nodes, then release the file. The backend below stays open."""
        self._session.close()

    @property
    def journal(self) -> Journal:
        return self._session.journal

    @property
    def counts(self) -> JournalCounts:
        """So far; the nodes themselves are `served` and `computed`."""
        return JournalCounts(len(self._session.served), len(self._session.computed))

    def __repr__(self) -> str:
        return f"<JournalBackend {self.journal.path}: {self.counts}>"

    @property
    def served(self) -> list[JournalNode]:
        return list(self._session.served)

    @property
    def computed(self) -> list[JournalNode]:
        return list(self._session.computed)

    # --- what a backend does ---------------------------------------------------------------------------------

    def open(self) -> Stream:
        return self._open(methodcaller("open"))

    def open_adapted(self, adapter: str) -> Stream:
        return self._open(methodcaller("open_adapted", adapter), adapter)

    def open_speculating(self, num_api_spec_tokens: int) -> Stream:
        return self._open(methodcaller("open_speculating", num_api_spec_tokens))

    def _open(self, opener: Callable[[Backend], Stream], adapter: str | None = None) -> Stream:
        stream = JournalStream(self._session, opener, (self._item,))
        stream.turn_to(adapter, opener)
        if self._session.nothing_to_serve:
            stream.start()
        return stream

    def for_item(self, index: int) -> Backend:
        """The same journal for item `index` of a batch, so that equal items keep their own nodes."""
        return JournalBackend(self._session, index)

    @cached_property
    def _template(self) -> ChatTemplate:
        inner = self._session.inner
        if inner is None:
            return for_replay(self.journal.header["chat_template"], self._session)
        return for_recording(inner.get_chat_template(), self._session)

    def get_chat_template(self) -> ChatTemplate:
        return self._template

    @property
    def chat_template(self) -> ChatTemplate:  # type: ignore[override]
        return self._template

    def get_model_name(self) -> str:
        inner = self._session.inner
        return inner.get_model_name() if inner else str(self.journal.header["model"])

    def cache_prefix(self, text: str) -> None:
        if self._session.inner is not None:
            self._session.inner.cache_prefix(text)

    def prepare(self, options: SamplingOptions) -> None:
        if self._session.inner is not None:
            self._session.inner.prepare(options)

    def token_texts(self, token_ids: Sequence[int]) -> list[str] | None:
        return self._session.inner.token_texts(token_ids) if self._session.inner else None

    def flush_cache(self) -> Any:
        return self._session.inner.flush_cache() if self._session.inner else False

    def get_server_info(self) -> dict[str, Any]:
        inner = self._session.inner
        return inner.get_server_info() if inner else {"model_path": self.get_model_name()}

    def shutdown(self) -> None:
        self.close()
        if self._session.inner is not None:
            self._session.inner.shutdown()


def record(path: str | Path, backend: Any = None, *, seed: int | None = None) -> JournalBackend:
    """`journal` for a new file only: raises JournalError if a journal is there already."""
    seed, inner = _checked(seed), resolve_backend(backend)
    return JournalBackend(ReplaySession(Journal.create(path, _header(inner, seed)), inner))


def resume(journal: str | Path | Journal, backend: Any = None, *, skip_damaged: bool = False) -> JournalBackend:
    """Return a backend that continues a recording: recorded nodes are reused, missing and failed ones computed and
    added.

    Use it after a crash, after an edit (`Journal.edit`) and with a changed program. Raises MissingJournalError (a
    FileNotFoundError) if there is no file (`sgl.journal` would begin one). `skip_damaged`: see `Journal.open`.
    """
    return _resumed(_opened(journal, skip_damaged), backend, None)


def _resumed(found: Journal, backend: Any, seed: int | None) -> JournalBackend:
    """seed: of a file in which nothing is yet."""
    inner = resolve_backend(backend)
    if not found.header:
        with found.writing():
            found.begin(_header(inner, seed))
    _check_model(found, inner)
    return JournalBackend(ReplaySession(found, inner))


def replay(journal: str | Path | Journal, *, skip_damaged: bool = False) -> JournalBackend:
    """Return a backend that runs programs from a recording alone, without a model.

    A node that was not recorded raises ReplayMismatch, which names the variable, the line and the difference.
    `skip_damaged`: see `Journal.open`.
    """
    found = _opened(journal, skip_damaged)
    if not found.header:
        raise JournalError(f"{found.path} is empty; there is nothing to replay")
    return JournalBackend(ReplaySession(found, None))


def journal(
    path: str | Path, backend: Any = None, *, seed: int | None = None, skip_damaged: bool = False
) -> JournalBackend:
    """Return a backend that runs programs on `backend` (None: the default one) and writes every node to a file.

    Nodes that the file already has are reused, so an interrupted run continues where it stopped. `seed` makes the whole
    recording repeatable; it applies to a new file, and without one a random seed is chosen and recorded. Gens with
    their own seed keep it. `skip_damaged`: see `Journal.open`. The `counts` of the returned backend say how many nodes
    came from the journal and how many were computed. Raises JournalError; BadValueError for a bad seed.

        with sgl.journal("run.jsonl") as backend:
            states = program.run_batch(rows, backend=backend)
        print(backend.counts)
    """
    return journalled(backend, path, seed=seed, skip_damaged=skip_damaged)


def journalled(
    backend: Any, path: str | Path, *, seed: int | None = None, skip_damaged: bool = False
) -> JournalBackend:
    """`backend`, with a journal at `path`: resumed if the file is there, else begun.

    Several runs of one process may name the same path, also at once; each is served what was there before it.
    """
    if not isinstance(path, str | Path):
        raise BadValueError(f"the journal is {path!r:.60}; give the path of a file")
    with _beginning:
        if not Path(path).exists():
            return record(path, backend, seed=seed)
        return _resumed(_opened(path, skip_damaged), backend, _checked(seed))


def _checked(seed: Any) -> int | None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise BadValueError(f"the journal's seed is {seed!r}; give a whole number, or None for a random one")
    return seed


def _opened(journal: str | Path | Journal, skip_damaged: bool) -> Journal:
    """Read anew. A Journal whose damaged lines were skipped is read so again."""
    if isinstance(journal, Journal):
        return Journal.open(journal.path, skip_damaged=skip_damaged or bool(journal.damaged))
    return Journal.open(journal, skip_damaged=skip_damaged)


_beginning = threading.Lock()


def _header(inner: Backend, seed: int | None) -> dict[str, Any]:
    template = header_of(inner.get_chat_template())
    drawn = secrets.randbelow(2**31) if seed is None else seed
    header = {"sgl": _version(), "model": inner.get_model_name(), "chat_template": template, "seed": drawn}
    return {**header, "masks_logprobs": True} if inner.masks_logprobs else header


def _check_model(journal: Journal, inner: Backend) -> None:
    recorded, name = journal.header["model"], inner.get_model_name()
    if recorded != name:
        message = f"{journal.path} was recorded with {recorded}; what is missing comes from {name}"
        where = caller_place() or SourceLocation("<sgl>", 0)
        warnings.warn_explicit(message, UserWarning, where.file, where.line)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sgl")
    except PackageNotFoundError:
        return "not installed"


class RecordingTemplate(ChatTemplate):
    """Another template, each turn of which goes into the journal: it is code, or belongs to a tokenizer."""

    def __init__(self, inner: ChatTemplate, session: ReplaySession) -> None:
        super().__init__(**_plain_fields(inner))
        self._inner = inner
        self._session = session

    def get_prefix_and_suffix(self, role: str, hist_messages: Messages) -> tuple[str, str]:
        texts = self._inner.get_prefix_and_suffix(role, hist_messages)
        self._session.journal.add_turn(_roles(hist_messages), role, *texts)
        return texts

    def get_prompt(self, messages: Messages) -> str:
        return self._inner.get_prompt(messages)


class RecordedTemplate(ChatTemplate):
    """The turns that a RecordingTemplate wrote down."""

    def __init__(self, header: dict[str, Any], session: ReplaySession) -> None:
        super().__init__(**_from_json(header))
        self._turns = session.journal.turns
        self._path = session.journal.path

    def get_prefix_and_suffix(self, role: str, hist_messages: Messages) -> tuple[str, str]:
        history = _roles(hist_messages)
        if (history, role) not in self._turns:
            raise ReplayMismatch(
                f"{self._path} has no turn of {role!r} after the turns {list(history)}; the program was recorded with "
                f"others. Resume it with a backend instead of replaying it"
            )
        return self._turns[history, role]


def header_of(template: ChatTemplate) -> dict[str, Any]:
    """A template as JSON; `noted` if its turns are not all known."""
    fields = _plain_fields(template)
    roles = {role: list(texts) for role, texts in template.role_prefix_and_suffix.items()}
    style = template.style.value
    fields.update(
        stop_str=list(template.stops), role_prefix_and_suffix=roles, style=style, noted=not _is_data(template)
    )
    return fields


def for_recording(template: ChatTemplate, session: ReplaySession) -> ChatTemplate:
    return template if _is_data(template) else RecordingTemplate(template, session)


def for_replay(header: dict[str, Any], session: ReplaySession) -> ChatTemplate:
    """Raises JournalError for an invalid template: the first line was edited."""
    try:
        return RecordedTemplate(header, session) if header["noted"] else ChatTemplate(**_from_json(header))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(
            f"{session.journal.path}:1 has a chat_template that is none ({type(error).__name__}: {error}); restore "
            "the file"
        ) from error


def _is_data(template: ChatTemplate) -> bool:
    return type(template) is ChatTemplate


def _plain_fields(template: ChatTemplate) -> dict[str, Any]:
    return {
        "name": template.name,
        "default_system_prompt": template.default_system_prompt,
        "role_prefix_and_suffix": dict(template.role_prefix_and_suffix),
        "stop_str": template.stops,
        "image_token": template.image_token,
        "audio_token": template.audio_token,
        "style": template.style,
    }


def _from_json(header: dict[str, Any]) -> dict[str, Any]:
    roles = {role: (prefix, suffix) for role, (prefix, suffix) in header["role_prefix_and_suffix"].items()}
    fields = {name: value for name, value in header.items() if name != "noted"}
    return {
        **fields,
        "stop_str": tuple(header["stop_str"]),
        "role_prefix_and_suffix": roles,
        "style": ChatTemplateStyle(header["style"]),
    }


def _roles(messages: Messages) -> tuple[str, ...]:
    return tuple(message["role"] for message in messages)
