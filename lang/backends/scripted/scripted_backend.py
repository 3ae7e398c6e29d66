"""A backend that answers from a script: programs are unit-tested without a model."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...backend import Backend, Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ...chat import ChatTemplate, get_chat_template
from ...concurrency.one_shot_callbacks import when_done
from ...errors import ProgramCancelled, ScriptError
from ...sampling.choices import ChoicesDecision
from ...sampling.constraint_match import byte_matcher, constraint_of, matches_constraint
from ...sampling.options import SamplingOptions
from ...sampling.text_limits import at_limit
from .answer_script import AnswerScript, Delayed, Request, as_decision, as_generated, words

__all__ = ["Delayed", "Scripted", "ScriptedCall"]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call and its answer. `answer` is the text, or None if the script raised an error. `adapter`: of the state."""

    prompt: str
    name: str | None
    request: Request
    answer: str | None
    media: tuple[Media, ...] = ()
    adapter: str | None = None

    @property
    def options(self) -> Any:
        """The SamplingOptions of a gen, None of a select."""
        return self.request.options if isinstance(self.request, GenRequest) else None

    @property
    def choices(self) -> list[str] | None:
        return self.request.choices if isinstance(self.request, SelectRequest) else None


class Scripted(Backend):
    """A backend for tests that answers gens and selects from `script`:

    - a dict that maps names of variables, or compiled regexes that search the prompt, to answers;
    - a list of answers, in the order of the calls;
    - a function of (prompt, request) that returns an answer.

    An answer is a text, a number, a dict (for a gen: written as JSON; for a select: log-probabilities of the choices),
    a `Generated`, an exception (which is raised), `Delayed(seconds, answer)`, or a function of (prompt, request) that
    returns one of these; in a dict it may be a list for successive calls. An answer that no model could have given,
    because the gen's regex, schema or stops forbid it, raises a ScriptError that says why. A text that max_tokens cuts
    is `Generated(text, {"finish_reason": {"type": "length", "length": 5}})`.

    `calls` lists the ScriptedCalls so far. Words count as tokens. It starts no threads unless you script delays.
    """

    masks_logprobs = True  # an answer that is a `Generated` may have them in its meta_info

    def __init__(self, script: Any, *, chat_template: str | ChatTemplate | None = None) -> None:
        self.chat_template = _template(chat_template)
        self.calls: list[ScriptedCall] = []
        self._script = AnswerScript(script)

    def open(self) -> Stream:
        return ScriptedStream(self)

    def open_adapted(self, adapter: str) -> Stream:
        return ScriptedStream(self, adapter=adapter)

    def get_model_name(self) -> str:
        return "scripted"

    def cache_prefix(self, text: str) -> None:
        """There is no cache."""

    def prompts(self, name: str | None) -> list[str]:
        """Return the prompts of all gens and selects with that name."""
        return [call.prompt for call in self.calls if call.name == name]

    def assert_exhausted(self) -> None:
        """Raises ScriptError (an AssertionError) if answers of the script were not asked for."""
        if left := self._script.left_over():
            raise ScriptError("the program did not use all scripted answers: " + "; ".join(left))

    def _answer(self, prompt: str, request: Request, media: tuple[Media, ...], adapter: str | None) -> Delayed:
        """The answer as the backend gives it, or an exception to be raised later, with its delay."""
        answer = self._script.answer(prompt, request)
        delay, answer = (answer.seconds, answer.answer) if isinstance(answer, Delayed) else (0.0, answer)
        if not isinstance(answer, BaseException):
            answer = _checked(answer, prompt, request)
        text = None if isinstance(answer, BaseException) else text_of(answer)
        self.calls.append(ScriptedCall(prompt, request.name, request, text, media, adapter))
        return Delayed(delay, answer)


class ScriptedStream(Stream):
    """The text is known at once, even where an answer is delivered with a delay."""

    def __init__(
        self, backend: Scripted, text: str = "", media: tuple[Media, ...] = (), adapter: str | None = None
    ) -> None:
        self._backend = backend
        self._adapter = adapter
        self._text = text
        self._media = media
        self._last: Future[Any] | None = None
        self._waiting: list[tuple[threading.Timer | None, Future[Any]]] = []

    def append(self, text: str) -> None:
        self._text += text

    def attach(self, media: Media, token: str) -> None:
        self._text += token
        self._media += (media,)

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        return self._ask(request, on_chunk)

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        return self._ask(request, None)

    def _ask(self, request: Request, on_chunk: OnChunk | None) -> Future[Any]:
        answer = self._backend._answer(self._text, request, self._media, self._adapter)
        if not isinstance(answer.answer, BaseException):
            keep = getattr(request, "keep", None) or str
            self._text += keep(text_of(answer.answer))
        before, self._last = self._last, Future()
        deliver = partial(self._after, answer, on_chunk, self._last)
        if before is None:
            deliver(None)
        else:
            self._hold(None, self._last)
            when_done(before, deliver)
        return self._last

    def _after(
        self, answer: Delayed, on_chunk: OnChunk | None, result: Future[Any], before: Future[Any] | None
    ) -> None:
        """What precedes it in the stream is done: deliver it, now or later."""
        if before is not None and (error := before.exception()):
            _end(result, error)
        elif answer.seconds:
            timer = threading.Timer(answer.seconds, _deliver, (answer.answer, on_chunk, result))
            timer.daemon = True
            self._hold(timer, result)
            timer.start()
        else:
            _deliver(answer.answer, on_chunk, result)

    def _hold(self, timer: threading.Timer | None, result: Future[Any]) -> None:
        self._waiting = [(other, waiting) for other, waiting in self._waiting if not waiting.done()]
        self._waiting.append((timer, result))

    def fork(self, size: int) -> list[Stream]:
        return self.fork_adapted([self._adapter] * size)

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        children = [ScriptedStream(self._backend, self._text, self._media, adapter) for adapter in adapters]
        for child in children:
            child._last = self._last
        return list(children)

    def abort(self) -> None:
        for timer, result in reversed(self._waiting):
            if timer is not None:
                timer.cancel()
            _end(result, ProgramCancelled("the run was stopped"))

    def close(self) -> None:
        """Delayed answers still come."""


def _deliver(answer: Any, on_chunk: OnChunk | None, result: Future[Any]) -> None:
    if on_chunk is not None and isinstance(answer, Generated) and not result.done():
        for piece in words(answer.text)[:-1]:
            on_chunk(Generated(piece, {"finish_reason": None}))
        on_chunk(Generated("".join(words(answer.text)[-1:]), answer.meta_info))
    _end(result, answer)


def _end(result: Future[Any], outcome: Any) -> None:
    """The first of the two, the answer or the abort, decides."""
    try:
        if isinstance(outcome, BaseException):
            result.set_exception(outcome)
        else:
            result.set_result(outcome)
    except InvalidStateError:
        pass


def _template(given: str | ChatTemplate | None) -> ChatTemplate:
    if isinstance(given, str):
        return get_chat_template(given)
    return given or replace(get_chat_template("default"), name="scripted")


def _checked(answer: Any, prompt: str, request: Request) -> Generated | ChoicesDecision:
    """The answer, if a model could have given it. Raises ScriptError."""
    if isinstance(request, SelectRequest):
        return as_decision(answer, request)
    generated = as_generated(answer, prompt)
    cut = bool(generated.meta_info.get("truncated")) or at_limit(generated.meta_info)
    reason = answer_objection(generated.text, request, cut)
    if reason is not None:
        raise ScriptError(f"no model could answer {generated.text!r:.80} to gen {request.name!r}: {reason}")
    return _closed(generated, request) if cut and request.options.close_at_limit else generated


def _closed(generated: Generated, request: GenRequest) -> Generated:
    """An answer that ends at its limit, completed by its grammar, as the engine does it."""
    matcher = matches_constraint(generated.text, request.options)
    if matcher is None or matcher.finished:
        return generated
    end = matcher.shortest_end().decode(errors="replace")
    return Generated(generated.text + end, {**generated.meta_info, "truncated": True, "closed": True})


def text_of(answer: Generated | ChoicesDecision) -> str:
    return answer.text if isinstance(answer, Generated) else answer.decision


def answer_objection(text: str, request: GenRequest, truncated: bool = False) -> str | None:
    """Why the gen could not have given the text, or None. `truncated`: it was cut at max_new_tokens."""
    return _stops_earlier(text, request) or _breaks_grammar(text, request.options, truncated)


def _stops_earlier(text: str, request: GenRequest) -> str | None:
    """A stop ends the text where it is complete; with keep_stop, after it."""
    kept = bool(request.options.keep_stop)
    patterns = [re.escape(stop) for stop in request.stops if stop] + list(request.options.stop_regex or ())
    for pattern in patterns:
        found = re.search(pattern, text)
        if found and not (kept and found.end() == len(text)):
            cut = text[: found.end() if kept else found.start()]
            return f"it has the stop {found.group()!r} in it, where the model's text ends; script {cut!r}"
    return None


def _breaks_grammar(text: str, options: SamplingOptions, truncated: bool) -> str | None:
    constraint = constraint_of(options)
    if constraint is None:
        return None
    kind, source = constraint
    matcher = byte_matcher(constraint)
    data = text.encode("utf-8", "surrogatepass")
    for position, byte in enumerate(data):
        if not matcher.accept(byte):
            at = len(data[:position].decode("utf-8", "ignore"))
            return f"the {kind} {source:.2000} does not allow it: {text[at:]!r:.40} cannot stand at character {at}"
    if not matcher.can_end and not truncated:
        rest = matcher.shortest_end().decode(errors="replace")
        return f"the {kind} {source} is not fulfilled at its end; it could end with {rest!r}"
    return None
