"""A backend over plain text whose answers are a function of the prompt: the language without a model."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sgl.lang.backend import Backend, Generated, GenRequest, OnChunk, SelectRequest, Stream
from sgl.lang.chat import ChatTemplate, get_chat_template
from sgl.lang.sampling.choices import ChoicesDecision

Rule = Callable[[str, GenRequest], str]


def count_words(prompt: str, request: GenRequest) -> str:
    """The number of words in the prompt, with the request's seed if it has one."""
    seed = request.options.seed
    return f"<{len(prompt.split())}>" if seed is None else f"<{len(prompt.split())}:{seed}>"


class RuleBackend(Backend):
    """Operations of all its streams run one after another on one thread, as on a scheduler."""

    def __init__(self, rule: Rule = count_words, template: str = "default") -> None:
        self.rule = rule
        self.chat_template: ChatTemplate = get_chat_template(template)
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="rules")
        self.requests: list[tuple[str, GenRequest]] = []
        self.prefixes: list[str] = []
        self.open_streams = 0
        self.gate = threading.Event()
        self.gate.set()

    def open(self) -> RuleStream:
        self.open_streams += 1
        return RuleStream(self)

    def cache_prefix(self, text: str) -> None:
        self.prefixes.append(text)


class RuleStream(Stream):
    def __init__(self, backend: RuleBackend, adapter: str | None = None) -> None:
        self.backend = backend
        self.adapter = adapter
        self.text = ""
        self.error: Exception | None = None
        self.aborted = threading.Event()

    def _queue(self, work: Callable[[], Any]) -> Future[Any]:
        return self.backend.worker.submit(self._checked, work)

    def _checked(self, work: Callable[[], Any]) -> Any:
        while not self.backend.gate.wait(0.01) and not self.aborted.is_set():
            pass
        if self.error:
            raise self.error
        if self.aborted.is_set():
            raise RuntimeError("the stream was aborted")
        try:
            return work()
        except Exception as error:
            self.error = error
            raise

    def append(self, text: str) -> None:
        self._queue(lambda: self._add(text))

    def _add(self, text: str) -> None:
        self.text += text

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        if request.options.json_schema is not None:
            raise ValueError("this backend knows no schemas")
        return self._queue(lambda: self._generate(request, on_chunk))

    def _generate(self, request: GenRequest, on_chunk: OnChunk | None) -> Generated:
        asked = self.text if self.adapter is None else f"({self.adapter}) {self.text}"
        self.backend.requests.append((asked, request))
        reply = self.backend.rule(asked, request)
        cuts = [reply.index(stop) for stop in request.stops if stop in reply]
        reply = reply[: min(cuts, default=len(reply))]
        for piece in re.findall(r"\S*\s*", reply) if on_chunk else []:
            on_chunk(Generated(piece, {"finish_reason": None}))  # type: ignore[misc]
        self.text += request.keep(reply) if request.keep else reply
        return Generated(
            reply,
            {
                "finish_reason": {"type": "stop", "matched": None},
                "prompt_tokens": len(self.text),
                "completion_tokens": len(reply.split()),
            },
        )

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        return self._queue(lambda: self._select(request))

    def _select(self, request: SelectRequest) -> ChoicesDecision:
        scores = [-float(len(choice)) for choice in request.choices]
        decision = request.method(
            choices=request.choices,
            normalized_prompt_logprobs=scores,
            input_token_logprobs=[[[score, 0, None]] for score in scores],
            output_token_logprobs=[[] for _ in scores],
        )
        self.text += decision.decision
        return decision

    def fork(self, size: int) -> list[Stream]:
        return self.fork_adapted([self.adapter] * size)

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        children = [RuleStream(self.backend, adapter) for adapter in adapters]
        self.backend.open_streams += len(children)
        self.backend.worker.submit(self._give_birth, children)
        return list(children)

    def _give_birth(self, children: list[RuleStream]) -> None:
        for child in children:
            child.text, child.error = self.text, self.error

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.backend.open_streams -= 1
