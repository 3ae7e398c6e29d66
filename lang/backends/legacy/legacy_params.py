"""Sampling parameters as older backends read them, with the names that providers' APIs have for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...backend import GenRequest
from ...sampling.option_table import FIRST_NAMES
from ...sampling.options import NAMES, SamplingOptions


class LegacyParams(SamplingOptions):
    """The options of one gen. Lists are lists, `stop` includes the stops of the chat template, `n` is 1;
    `max_new_tokens`
    may be None: then nothing but the model's context bounds the text."""

    __slots__ = ()

    @classmethod
    def of(cls, request: GenRequest) -> LegacyParams:
        given: dict[str, Any] = {name: getattr(request.options, name) for name in NAMES}
        lists = {name: list(given[name] or ()) for name in ("stop_token_ids", "stop_regex")}
        given |= {"n": 1, "stop": list(request.options.stop or ()) + list(request.template_stops)}
        return cls(**(given | lists))

    def clone(self) -> LegacyParams:
        return replace(self)

    def to_openai_kwargs(self) -> dict[str, Any]:
        return {"n": 1, **self.to_litellm_kwargs()}

    def to_litellm_kwargs(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_new_tokens,
            "stop": self.stop or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }

    def to_anthropic_kwargs(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_new_tokens,
            "stop_sequences": self.stop,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }

    def to_vertexai_kwargs(self) -> dict[str, Any]:
        return {
            "candidate_count": 1,
            "max_output_tokens": self.max_new_tokens,
            "stop_sequences": self.stop,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k if (self.top_k or 0) > 0 else None,
        }

    def to_srt_kwargs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIRST_NAMES}
