"""API speculation on chat models: an assistant's turn of several gens and literals is one call.

The answer is matched with the turn: literals must be in it unchanged, gens are what is between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...backend import Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ...concurrency.one_shot_callbacks import when_done
from ...errors import RemoteAbortedError, SpeculationError, UnsupportedByBackendError, check_text
from ...sampling.choices import ChoicesDecision
from ...sampling.options import CONSTRAINTS, SamplingOptions
from ..apis.api_response import first_stop
from ..pending_calls import forward_result
from ..remote.remote_stream import RemoteStream

ATTEMPTS = 3

_FREE = {"max_new_tokens": None, "stop": None, "timeout": None}


class TurnFuture(Future[Generated]):
    """The result of a gen that waits for the end of its turn. `demand` is for those who would wait before."""

    def __init__(self, stream: TurnSpeculation) -> None:
        super().__init__()
        self._stream = stream

    def demand(self) -> None:
        """Somebody waits for the result. If the turn is still open, it fails instead of waiting for ever."""
        self._stream.demanded(self)


@dataclass
class TurnSlot:
    """A gen in a turn that is still open."""

    request: GenRequest
    on_chunk: OnChunk | None
    future: TurnFuture


Element = str | TurnSlot


@dataclass
class OpenTurn:
    """What an assistant's turn consists of so far."""

    elements: list[Element] = field(default_factory=list)

    @property
    def slots(self) -> list[TurnSlot]:
        return [element for element in self.elements if isinstance(element, TurnSlot)]

    def add(self, text: str) -> None:
        if self.elements and isinstance(self.elements[-1], str):
            self.elements[-1] += text
        else:
            self.elements.append(text)

    def fail(self, error: BaseException) -> None:
        for slot in self.slots:
            slot.future.set_exception(error)


class TurnSpeculation(RemoteStream):
    """Assistant's turns of one gen and nothing before it are ordinary calls; others are matched at their end.

    The gens of such a turn share their options, but for stop and max_tokens; the limit of the call is
    `spec_tokens`. A gen ends at its stop, without stops where the next literal begins, the last one at the
    end of the answer. Up to three answers are asked for; then SpeculationError shows them.
    """

    spec_tokens = 0

    def __init__(self, backend: Any, born: bool = True) -> None:
        super().__init__(backend, born)
        self._turn: OpenTurn | None = None
        self._turning = threading.RLock()

    # --- the protocol ------------------------------------------------------------------------------------

    def begin_turn(self, role: str, prefix: str) -> None:
        super().begin_turn(role, prefix)
        if role == "assistant":
            self._turn = OpenTurn()

    def end_turn(self, role: str, suffix: str) -> None:
        self._close_turn()
        super().end_turn(role, suffix)

    def append(self, text: str) -> None:
        check_text(text, "the text")
        with self._turning:
            if self._turn is not None:
                self._turn.add(text)
                return
        super().append(text)

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        with self._turning:
            if self._turn is None:
                return super().generate(request, on_chunk)
            try:
                self.backend.check(request)
                self._check_fits(request, self._turn)
            except Exception as error:
                self._turn.fail(error)
                self._turn = None
                raise
            slot = TurnSlot(request, on_chunk, TurnFuture(self))
            self._turn.elements.append(slot)
            return slot.future

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        self._leave_turn("select")
        return super().select(request)

    def attach(self, media: Media, token: str) -> None:
        self._leave_turn(media.kind)
        super().attach(media, token)

    def prefill(self) -> Future[None]:
        self._leave_turn("a commit")
        return super().prefill()

    def fork(self, size: int) -> list[Stream]:
        """Forks inside a turn continue without speculation until it ends."""
        text = self._text_of_turn("fork")
        children = super().fork(size)
        for child in children if text else ():
            child.append(text)
        return children

    def abort(self) -> None:
        with self._turning:
            turn, self._turn = self._turn, None
        super().abort()
        if turn is not None:
            turn.fail(RemoteAbortedError("the stream was aborted"))

    def close(self) -> None:
        """A turn that was never ended ends here."""
        self._close_turn()
        super().close()

    def inherit(self, parent: RemoteStream) -> None:
        super().inherit(parent)
        self.spec_tokens = parent.spec_tokens  # type: ignore[attr-defined]

    def demanded(self, future: TurnFuture) -> None:
        with self._turning:
            turn = self._turn
            if turn is None or all(slot.future is not future for slot in turn.slots):
                return
            self._turn = None
        name = next(slot.request.name for slot in turn.slots if slot.future is future)
        error = SpeculationError(
            f"{name!r} was read inside its assistant turn, but with num_api_spec_tokens the turn is generated "
            "when it ends; read it after the turn, or leave num_api_spec_tokens out"
        )
        self._gate.break_with(error)
        turn.fail(error)

    # --- the turn ----------------------------------------------------------------------------------------

    def _check_fits(self, request: GenRequest, turn: OpenTurn) -> None:
        """Raise if the gen cannot be part of one call with what the turn has already."""
        if not turn.elements:
            return
        slots = turn.slots
        if slots and _shared(slots[0].request.options) != _shared(request.options):
            raise UnsupportedByBackendError(
                f"gen({request.name!r}) has other options than gen({slots[0].request.name!r}) in the same "
                "assistant turn, which is one call with num_api_spec_tokens; give them the same (stop and "
                "max_tokens may differ), or write a turn for each"
            )
        constrained = [name for name in CONSTRAINTS if getattr(request.options, name) is not None]
        if constrained and not (self.backend_continues_turns and not slots):
            raise UnsupportedByBackendError(
                f"gen({request.name!r}) has {constrained[0]}, which holds for a whole answer, not for a part of "
                "an assistant turn; give it a separate turn"
            )
        if slots and not isinstance(turn.elements[-1], str) and not slots[-1].request.options.stops:
            raise UnsupportedByBackendError(
                f"gen({slots[-1].request.name!r}) has no stop and no text after it, so nothing separates it from "
                f"gen({request.name!r}); give it a stop"
            )

    @property
    def backend_continues_turns(self) -> bool:
        """True if the server continues the text that a turn begins with."""
        return bool(getattr(self.backend, "prefill", False))

    def _text_of_turn(self, what: str) -> str:
        with self._turning:
            if self._turn is None:
                return ""
            if self._turn.slots:
                raise UnsupportedByBackendError(
                    f"{what} inside an assistant turn that is generated when it ends (num_api_spec_tokens); end "
                    "the turn before"
                )
            return "".join(element for element in self._turn.elements if isinstance(element, str))

    def _leave_turn(self, what: str) -> None:
        """From here on this turn is an ordinary one: it has no gens yet."""
        text = self._text_of_turn(what)
        self._turn = None
        super().append(text)

    def _close_turn(self) -> None:
        with self._turning:
            turn, self._turn = self._turn, None
        if turn is not None:
            self._generate_turn(turn)

    def _generate_turn(self, turn: OpenTurn) -> None:
        elements = turn.elements
        while elements and isinstance(elements[0], str) and (self.backend_continues_turns or not turn.slots):
            super().append(elements.pop(0))  # type: ignore[arg-type]
        if not elements:
            return
        if len(turn.slots) == 1 and isinstance(elements[0], TurnSlot):
            self._generate_alone(elements[0], elements[1:])
            return
        options = [slot.request.options for slot in turn.slots]
        timeouts = [option.timeout for option in options if option.timeout is not None]
        deadline = time.monotonic() + min(timeouts) if timeouts else None
        filled = self.queue(partial(self._fill, elements, deadline), partial(self._write_turn, elements))
        when_done(filled, partial(_settle, turn.slots))

    def _generate_alone(self, slot: TurnSlot, rest: Sequence[Element]) -> None:
        forward_result(super().generate(slot.request, slot.on_chunk), slot.future, lambda generated: generated)
        for text in rest:
            super().append(str(text))

    async def _fill(self, elements: Sequence[Element], deadline: float | None) -> list[Generated]:
        """The result of each gen, from one answer that has the format of the turn."""
        slots = [element for element in elements if isinstance(element, TurnSlot)]
        failures: list[str] = []
        for attempt in range(ATTEMPTS):
            request = self._request_of(slots, attempt)
            whole = await self.produce(request, None, deadline)
            try:
                return _results(slots, match(elements, whole.text), whole)
            except FormatError as error:
                failures.append(f"{whole.text!r}: {error}")
        raise SpeculationError(
            f"no answer had the format {describe(elements)}:\n  "
            + "\n  ".join(failures)
            + f"\nDescribe the format in the prompt, give more num_api_spec_tokens (now {self.spec_tokens}), or "
            "write a turn for each gen"
        )

    def _request_of(self, slots: Sequence[TurnSlot], attempt: int) -> GenRequest:
        first = slots[0].request
        seed = first.options.seed
        options = replace(
            first.options, max_new_tokens=self.spec_tokens, stop=(), seed=None if seed is None else seed + attempt
        )
        return GenRequest(options, (), first.name, first.where)

    def _write_turn(self, elements: Sequence[Element], results: list[Generated]) -> None:
        found = iter(results)
        for element in elements:
            if isinstance(element, str):
                self.write(element)
            else:
                self._write_generated(element.request, next(found))


class FormatError(ValueError):
    """An answer that has not the format of the turn. The message says where."""


def match(elements: Sequence[Element], answer: str) -> list[tuple[str, str | None]]:
    """The text of each gen and the stop that ended it. Raises FormatError.

    What follows the last gen is not looked for: the answer may end before it. White space before the
    answer does not count.
    """
    last = max(index for index, element in enumerate(elements) if isinstance(element, TurnSlot))
    if isinstance(elements[0], str):
        elements = [elements[0].lstrip(), *elements[1:]]
        answer = answer.lstrip()
    found: list[tuple[str, str | None]] = []
    at = 0
    for index, element in enumerate(elements[: last + 1]):
        if isinstance(element, str):
            if not answer.startswith(element, at):
                raise FormatError(f"at character {at} stands {answer[at : at + 40]!r} instead of {element!r}")
            at += len(element)
        else:
            follower = elements[index + 1] if index < last else None
            end, stop = _end_of(element, follower, answer, at)
            found.append((answer[at:end], stop))
            at = end
    return found


def _end_of(slot: TurnSlot, follower: Element | None, answer: str, at: int) -> tuple[int, str | None]:
    """Where the text of a gen ends that begins at `at`, and by which stop."""
    stops = slot.request.options.stops
    if cut := first_stop(answer[at:], stops):
        return at + cut[0], cut[1]
    if follower is None:
        return len(answer), None
    if not stops and isinstance(follower, str) and (end := answer.find(follower, at)) >= 0:
        return end, None
    looked_for = " or ".join(map(repr, stops)) or repr(follower)
    raise FormatError(f"nothing ends gen({slot.request.name!r}): no {looked_for} after character {at}")


def describe(elements: Sequence[Element]) -> str:
    """A turn as the program has it."""
    return " + ".join(
        repr(element) if isinstance(element, str) else f"gen({element.request.name!r})" for element in elements
    )


def _results(slots: Sequence[TurnSlot], found: list[tuple[str, str | None]], whole: Generated) -> list[Generated]:
    """The gens' texts; the cost of the call is counted with the first."""
    results = []
    for index, (text, stop) in enumerate(found):
        reason: Any = {"type": "stop", "matched": stop}
        if stop is None and index == len(slots) - 1:
            reason = whole.meta_info.get("finish_reason", reason)
        cost = {} if index == 0 else {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        meta = {**whole.meta_info, **cost, "finish_reason": reason, "speculated": index > 0}
        results.append(Generated(text, meta))
    return results


def _settle(slots: Sequence[TurnSlot], filled: Future[list[Generated]]) -> None:
    error = filled.exception()
    for index, slot in enumerate(slots):
        if error is not None:
            slot.future.set_exception(error)
        else:
            slot.future.set_result(filled.result()[index])


def _shared(options: SamplingOptions) -> SamplingOptions:
    return replace(options, **_FREE)
