"""select at a server of OpenAI's protocol: by scores where it gives them, else by what it writes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from ...backend import Generated, GenRequest, OnChunk, SelectRequest
from ...errors import RemoteProtocolError, RemoteStatusError
from ...sampling.choices import ChoicesDecision, TokenLengthNormalized, TokenLogprob
from ...sampling.options import DEFAULTS, SamplingOptions
from ..remote.remote_prompt import RemotePrompt
from ..select_decision import Rows, conclude_select
from .openai_constraints import ConstraintTokenizer, ServerCapabilities
from .openai_request import Body
from .openai_response import text_logprobs

Ask = Callable[[Body], Awaitable[Any]]
Complete = Callable[[RemotePrompt, GenRequest, OnChunk | None], Awaitable[Generated]]


class EchoLogprobScorer:
    """Decides by the log-probabilities of the choices, if the server echoes a prompt with them."""

    def __init__(self, ask: Ask, traits: ServerCapabilities) -> None:
        self._ask = ask
        self._traits = traits
        self.echoes = True  # until the server says that it does not

    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        if self.echoes:
            try:
                return await self._by_scores(prompt, request)
            except RemoteStatusError as error:
                if error.status != 400:
                    raise
                self.echoes = False
        return await self._by_bias(prompt, request)

    async def _by_scores(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        texts = [prompt.text + choice for choice in request.scored]
        if prompt.text:
            texts.insert(0, prompt.text)
        found = await self._score(texts)
        start = _common_start(found)
        rows = [row[start:] for row in found[len(found) - len(request.choices) :]]
        priors = await self._priors(request, rows) if request.method.requires_unconditional_logprobs else None
        return conclude_select(request, rows, priors=priors)

    async def _score(self, texts: list[str]) -> Rows:
        body = {"prompt": texts, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0.0}
        answer = await self._ask(body)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if len(choices) != len(texts) or any(choice.logprobs is None for choice in choices):
            raise RemoteStatusError("the server gave no log-probabilities of the prompts", status=400)
        return [text_logprobs(choice)[0] for choice in choices]

    async def _priors(self, request: SelectRequest, rows: Rows) -> Rows:
        found = await self._score(["".join(entry[2] for entry in row) for row in rows])
        for choice, row, prior in zip(request.choices, rows, found, strict=True):
            if [entry[2] for entry in row] != [entry[2] for entry in prior]:
                raise self._traits.refuse(
                    f"reads the choice {choice!r} as other tokens when it stands alone",
                    "use token_length_normalized or greedy_token_selection",
                )
        return found

    async def _by_bias(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        tokenizer = await asyncio.to_thread(self._traits.tokenizer)  # it may have to be fetched
        if tokenizer is None:
            raise self._traits.refuse(
                "gives no log-probabilities of a prompt, so select must steer it by a bias on tokens, which "
                "are not known",
                "give OpenAI(..., tokenizer=) an object with encode(), or pip install tiktoken for models of OpenAI",
            )
        _check_method(request, self._traits)
        return await _walk(self._ask, prompt.text, request, tokenizer)


def _common_start(rows: Sequence[Sequence[TokenLogprob]]) -> int:
    """How many tokens all texts begin with in common."""
    columns = zip(*([entry[2] for entry in row] for row in rows), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


async def _walk(ask: Ask, text: str, request: SelectRequest, tokenizer: ConstraintTokenizer) -> ChoicesDecision:
    """Token by token, let the model write one of the next tokens of the remaining choices."""
    paths = [tokenizer.encode(choice) for choice in request.choices]
    scores = [0] * len(paths)
    left = list(range(len(paths)))
    for depth in count():
        going_on = [index for index in left if len(paths[index]) > depth]
        if len(left) == 1 or not going_on:
            break
        allowed = sorted({paths[index][depth] for index in going_on})
        may_end = len(going_on) < len(left)
        written = text + tokenizer.decode(paths[going_on[0]][:depth])
        token = await _next_token(ask, written, allowed, may_end, request, tokenizer)
        left = [index for index in left if _token(paths[index], depth) == token]
        for index in left if token is not None else ():
            scores[index] += 1
    return ChoicesDecision(request.choices[left[0]], {"scores": scores})


def _token(path: list[int], depth: int) -> int | None:
    return path[depth] if depth < len(path) else None


async def _next_token(
    ask: Ask, text: str, allowed: list[int], may_end: bool, request: SelectRequest, tokenizer: ConstraintTokenizer
) -> int | None:
    """Which of the allowed tokens the model writes; None for another, where a choice may end here."""
    if len(allowed) == 1 and not may_end:
        return allowed[0]
    body: Body = {"prompt": text, "max_tokens": 1, "temperature": request.temperature}
    if not may_end:
        body["logit_bias"] = {str(token): 100 for token in allowed}
    answer = await ask(body)
    written = tokenizer.encode(answer.choices[0].text)
    if written and written[0] in allowed:
        return written[0]
    if may_end:
        return None
    raise RemoteProtocolError(
        f"the model wrote {answer.choices[0].text!r} against a bias of 100 on other tokens; is `tokenizer` the "
        "model's own?"
    )


def _check_method(request: SelectRequest, traits: ServerCapabilities) -> None:
    if not isinstance(request.method, TokenLengthNormalized):
        raise traits.refuse(
            f"gives no scores for {request.method!r}", "leave choices_method out: the model then writes its choice"
        )


# --- chat ------------------------------------------------------------------------------------------------


async def choose_in_chat(
    complete: Complete, prompt: RemotePrompt, request: SelectRequest, traits: ServerCapabilities
) -> ChoicesDecision:
    """Have the model write one of the choices, by a grammar if the server has them, else by an enum schema."""
    _check_method(request, traits)
    generated = await complete(prompt, GenRequest(_writing_options(request, traits)), None)
    chosen = generated.text if traits.constrained else _value(generated.text)
    if chosen not in request.choices:
        raise traits.refuse(
            f"answered {generated.text!r}, which is none of {request.choices}: the server did not keep to the form",
            "use a model with structured outputs, or a completion model",
        )
    return ChoicesDecision(str(chosen), generated.meta_info)


def _writing_options(request: SelectRequest, traits: ServerCapabilities) -> SamplingOptions:
    longest = max(len(choice.encode()) for choice in request.choices)
    options = replace(
        DEFAULTS,
        max_new_tokens=4096 if traits.reasoning else 64 + 2 * longest,
        temperature=request.temperature,
        seed=request.seed,
        error_on_truncation=True,
    )
    if traits.constrained:
        return replace(options, regex="|".join(f"({re.escape(choice)})" for choice in request.choices))
    choices = {"type": "string", "enum": list(dict.fromkeys(request.choices))}
    return replace(options, json_schema=json.dumps({"type": "object", "properties": {"choice": choices}}))


def _value(written: str) -> str | None:
    try:
        found = json.loads(written)
    except ValueError:
        return None
    return found.get("choice") if isinstance(found, dict) else None
