"""The sampling options, for type checkers and editors. Made by docs/site/sampling.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from .choices import ChoicesSamplingMethod

Strings = str | list[str] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The fields of SamplingOptions."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    keep_stop: bool | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    masked_logprobs: bool | None = None
    close_at_limit: bool | None = None
    error_on_truncation: bool | None = None
    speculation: bool | None = None
    n: int | None = None
    logprob_start_len: int | None = None
    return_text_in_logprobs: bool | None = None
    dtype: str | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    copied_from: str | None = None
    timeout: float | None = None


class SamplingNames(TypedDict, total=False):
    """What a gen and a run both take, besides `max_tokens`. See `sgl.gen`."""

    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    top_n_sigma: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: dict[int, float] | None
    stop: Strings
    stop_token_ids: list[int] | None
    stop_regex: Strings
    keep_stop: bool | None
    ignore_eos: bool | None
    seed: int | None
    return_logprob: bool | None
    top_logprobs_num: int | None
    masked_logprobs: bool | None
    close_at_limit: bool | None
    error_on_truncation: bool | None
    speculation: bool | None
    n: int | None
    logprob_start_len: int | None
    return_text_in_logprobs: bool | None
    timeout: float | None


class GenOptions(SamplingNames, total=False):
    """What `gen` takes besides its name, its type, `max_tokens` and `choices`. See `sgl.gen`."""

    min_tokens: int | None
    choices_method: ChoicesSamplingMethod | None
    min_new_tokens: int | None
    dtype: Any
    regex: str | None
    json_schema: Any
    ebnf: str | None
    structural_tag: Any
    copied_from: str | None
