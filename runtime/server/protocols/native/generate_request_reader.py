"""From the fields of a `/generate` call to what the engine is asked for, prompt by prompt."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import OTHER_NAMES, SamplingParams, accepted_names
from sgl.runtime.text.chat_templates.quoted_text import QuotedText
from sgl.runtime.text.tokenizer import Tokenizer

from ...http.http_errors import RequestError
from ..openai_common.sampling_fields import options_in
from .native_types import SAMPLING_WITHOUT, WITHOUT, GenerateFields, SamplingFields, checked

MOST_PROMPTS = 256  # in one call
DIGITS = 18  # of a token id, at most

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag"]

_CONSTRAINTS: tuple[Kind, ...] = ("regex", "json_schema", "ebnf", "structural_tag")


@dataclass(frozen=True, slots=True)
class GrammarConstraint:
    kind: Kind
    source: str
    resources: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NativeSampling:
    """One `sampling_params`: how `n` texts are to be sampled."""

    params: SamplingParams
    constraint: GrammarConstraint | None
    n: int


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt: `n` texts are to follow it. `logprob_start`: the first of its tokens to be scored; -1: none.

    named: the `rid` is the client's own: it may be going to abort it.
    batch: the client's name of the whole call, where that has several prompts.
    adapter: the name of the one that computes it, None: the base does.
    """

    rid: str
    prompt: str | list[int]
    params: SamplingParams
    constraint: GrammarConstraint | None
    n: int = 1
    logprob_start: int = -1
    token_texts: bool = False
    named: bool = False
    batch: str | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A call: its prompts, whether they came as a list, whether the answer is a stream, how urgent it is, its
    seconds."""

    prompts: list[PromptRequest]
    batched: bool
    stream: bool
    priority: int | None = None
    timeout: float | None = None

    @property
    def listed(self) -> bool:
        """Whether the answer is a list: there is more than one text, or there may be."""
        return self.batched or self.prompts[0].n > 1


def read_request(data: Mapping[str, Any], tokenizer: Tokenizer, most: int | None = None) -> GenerateRequest:
    """The call that the JSON object `data` asks for. Raises RequestError or ConfigError naming the value.

    most: of tokens that a text may have.
    """
    fields = checked(GenerateFields, data, WITHOUT)
    prompts, batched = _prompts(fields)
    each("sampling_params", fields.sampling_params, len(prompts), batched)  # its length, before each entry is looked at
    samplings = each("sampling_params", _read_samplings(fields.sampling_params, tokenizer, most), len(prompts), batched)
    wanted = each("return_logprob", fields.return_logprob or False, len(prompts), batched)
    starts = each("logprob_start_len", _given(fields.logprob_start_len, -1), len(prompts), batched)
    tops = each("top_logprobs_num", _given(fields.top_logprobs_num, 0), len(prompts), batched)
    adapters = each("lora_path", fields.lora_path, len(prompts), batched)
    rids = _rids(fields.rid, len(prompts), batched)
    requests = [
        PromptRequest(
            rid=rids[i],
            prompt=prompt,
            params=_with_logprobs(samplings[i].params, wanted[i], tops[i]),
            constraint=samplings[i].constraint,
            n=samplings[i].n,
            logprob_start=_start(starts[i]) if wanted[i] else -1,
            token_texts=bool(fields.return_text_in_logprobs),
            named=fields.rid is not None,
            batch=fields.rid if isinstance(fields.rid, str) and batched else None,
            adapter=adapters[i] or None,
        )
        for i, prompt in enumerate(prompts)
    ]
    return GenerateRequest(requests, batched, bool(fields.stream), fields.priority, fields.timeout)


# the prompts, and what there is for each of them


def _prompts(fields: GenerateFields) -> tuple[list[str | list[int]], bool]:
    if (fields.text is None) == (fields.input_ids is None):
        raise RequestError("give either text or input_ids, one of the two", param="text")
    given: Any = fields.text if fields.text is not None else fields.input_ids
    batched = isinstance(given, list) and not (given and isinstance(given[0], int))
    prompts = given if batched else [given]
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        name = "text" if fields.text is not None else "input_ids"
        raise RequestError(
            f"{name} holds {len(prompts)} prompts; send from 1 to {MOST_PROMPTS} in one call", param=name
        )
    return _quoted(fields, prompts, batched), batched


def _quoted(fields: GenerateFields, prompts: list[Any], batched: bool) -> list[Any]:
    """The prompts, with what is quoted of their texts."""
    if fields.quoted is None:
        return prompts
    given: list[Any] = fields.quoted if batched else [fields.quoted]
    if fields.text is None or len(given) != len(prompts):
        raise RequestError(f"quoted has stretches of {len(given)} texts, and there are {len(prompts)}", param="quoted")
    return [_passage(text, stretches) for text, stretches in zip(prompts, given, strict=True)]


def _passage(text: str, stretches: list[Any]) -> QuotedText:
    """Raises RequestError for stretches that are none of the text, in order and apart."""
    end = 0
    for stretch in stretches:
        whole = isinstance(stretch, list) and len(stretch) == 3 and all(isinstance(value, int) for value in stretch)
        if not whole or not end <= stretch[0] < stretch[1] <= len(text) or stretch[2] > 1:
            problem = (
                f"quoted has {stretch!r:.60} in a text of {len(text)} characters; give [first, end, 0 or 1], in order"
            )
            raise RequestError(problem, param="quoted")
        end = stretch[1]
    return QuotedText(text, ((first, stop, bool(own)) for first, stop, own in stretches))


def each(name: str, value: Any, count: int, batched: bool) -> list[Any]:
    """The value of each prompt: a list has one entry for each, anything else goes for all."""
    if not isinstance(value, list):
        return [value] * count
    if not batched or len(value) != count:
        raise RequestError(
            f"{name} has {len(value)} entries for {count} prompts; give one for each, or no list", param=name
        )
    return value


def _rids(rid: str | list[str] | None, count: int, batched: bool) -> list[str]:
    if isinstance(rid, str) and batched:
        return [f"{rid}_{i}" for i in range(count)]
    return [given or uuid.uuid4().hex for given in each("rid", rid, count, batched)]


def _start(start: int) -> int:
    if start < -1:
        raise RequestError(
            f"logprob_start_len is {start}; give a token's place in the prompt, or -1", param="logprob_start_len"
        )
    return start


# sampling


def _read_samplings(
    given: dict[str, Any] | list[dict[str, Any]] | None, tokenizer: Tokenizer, most: int | None
) -> NativeSampling | list[NativeSampling]:
    if isinstance(given, list):
        return [_read_sampling(entry, tokenizer, most, f"sampling_params[{i}]") for i, entry in enumerate(given)]
    return _read_sampling(given or {}, tokenizer, most, "sampling_params")


def _read_sampling(entry: Mapping[str, Any], tokenizer: Tokenizer, most: int | None, place: str) -> NativeSampling:
    fields = checked(SamplingFields, entry, SAMPLING_WITHOUT, place)
    lengths = _lengths(fields, place)
    _check_least(lengths, place)
    _check_most(lengths, most, place)
    return NativeSampling(_params(fields, lengths, tokenizer), _constraint(fields), fields.n or 1)


def _lengths(fields: SamplingFields, place: str) -> dict[str, int | None]:
    """`max_tokens` and `min_tokens`, as far as they are given, under whichever name.

    A max_new_tokens that is null is None.
    """
    given = {name: getattr(fields, name) for both in OTHER_NAMES.items() for name in both}
    unbounded: dict[str, int | None] = {"max_tokens": None} if "max_new_tokens" in fields.model_fields_set else {}
    try:
        return unbounded | accepted_names({name: value for name, value in given.items() if value is not None})
    except ConfigError as error:
        raise RequestError(f"in {place}, {error}", param=place) from None


def _check_least(lengths: dict[str, int | None], place: str) -> None:
    least, most = lengths.get("min_tokens") or 0, lengths.get("max_tokens", SamplingParams().max_tokens)
    if most is not None and least > most:
        param = f"{place}.min_new_tokens"
        raise RequestError(f"{param} is {least} and max_new_tokens is {most}; raise max_new_tokens", param=param)


def _check_most(lengths: dict[str, int | None], most: int | None, place: str) -> None:
    asked = lengths.get("max_tokens")
    if most is not None and asked is not None and asked > most:
        param = f"{place}.max_new_tokens"
        raise RequestError(f"{param} is {asked}, more than this server's {most}; ask for less", param=param)


def _params(fields: SamplingFields, lengths: dict[str, int | None], tokenizer: Tokenizer) -> SamplingParams:
    values: dict[str, Any] = {option.name: getattr(fields, option.names["native"]) for option in options_in("native")}
    given = {name: value for name, value in values.items() if value is not None} | lengths
    stops, ids = split_stops(_listed(values["stop"]), tokenizer)
    given |= {
        "stop": stops,
        "stop_token_ids": (*(values["stop_token_ids"] or ()), *ids),
        "stop_regex": tuple(_listed(values["stop_regex"])),
        "logit_bias": {_token_id(token): bias for token, bias in (values["logit_bias"] or {}).items()},
    }
    params = SamplingParams(**given)
    params.validate()
    return params


def _with_logprobs(params: SamplingParams, wanted: bool, top: int) -> SamplingParams:
    return replace(params, logprobs=True, top_logprobs=top) if wanted else params


def split_stops(stops: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[str, ...], list[int]]:
    """A stop that is one special token is looked for among the tokens: it never stands in the text."""
    ids = {stop: tokenizer.token_id(stop) for stop in stops}
    special = {stop: token for stop, token in ids.items() if token is not None and token in tokenizer.special_ids}
    return tuple(stop for stop in stops if stop not in special), list(special.values())


def _token_id(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS:
        raise RequestError(
            f"logit_bias has the key {text[:DIGITS]!r}; its keys are token ids", param="sampling_params.logit_bias"
        )
    return int(text)


# the constraint


def _constraint(fields: SamplingFields) -> GrammarConstraint | None:
    given = [kind for kind in _CONSTRAINTS if getattr(fields, kind) is not None]
    if len(given) > 1:
        raise RequestError(f"sampling_params has {' and '.join(given)}; only one of them can be set", param=given[1])
    if not given:
        return None
    source = getattr(fields, given[0])
    return GrammarConstraint(
        given[0], source if isinstance(source, str) else _written(given[0], source), fields.resources
    )


def _written(kind: Kind, source: Any) -> str:
    """As text, once for all prompts of a call."""
    try:
        return json.dumps(source, ensure_ascii=False)
    except RecursionError:
        raise RequestError(f"{kind} is nested too deeply; send it flatter", param=kind) from None


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
