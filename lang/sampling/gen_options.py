"""The keyword options of `gen` and of runs, for type checkers."""

from __future__ import annotations

from typing import Any, TypedDict

from .choices import ChoicesSamplingMethod

Strings = str | list[str] | tuple[str, ...] | None


class SamplingNames(TypedDict, total=False):
    """What a gen and a run both take, besides `max_tokens`. See `sgl.gen`."""

    max_new_tokens: int | None
    n: int | None
    stop: Strings
    stop_token_ids: list[int] | None
    stop_regex: Strings
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: dict[int, float] | None
    seed: int | None
    ignore_eos: bool | None
    keep_stop: bool | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None
    close_at_limit: bool | None
    error_on_truncation: bool | None
    speculation: bool | None
    timeout: float | None


class GenOptions(SamplingNames, total=False):
    """What `gen` takes besides its name, its type, `max_tokens` and `choices`. See `sgl.gen`."""

    min_tokens: int | None
    min_new_tokens: int | None
    dtype: Any
    choices_method: ChoicesSamplingMethod | None
    regex: str | None
    json_schema: Any
    ebnf: str | None
    structural_tag: Any
