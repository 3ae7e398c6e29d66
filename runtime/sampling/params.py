"""What a caller may ask of one generation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sgl.runtime.errors import ConfigError

GREEDY_BELOW = 1e-6  # temperatures under this mean greedy
MOST_STOPS = 10_000  # characters of all stops together: looking for them takes room for each
SMALLEST, LARGEST = 1e-30, 1e30  # what lies beyond could be 0 or infinity in single precision, in which it is used


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one `generate`. `validate()` raises ConfigError naming the bad value.

    temperature below 1e-6 means greedy. top_k = -1 means all. max_tokens = 0 samples nothing and gives
    one row of next-token logprobs when logprobs are asked for. `seed` makes the noise a hash of
    (seed, position) whatever else is in the batch; None draws a fresh seed.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    keep_stop: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    close_at_limit: bool = False  # constrained: finish by the grammar's shortest_end() at max_tokens
    error_on_truncation: bool = False  # constrained: raise TruncatedError when cut by max_tokens

    @property
    def greedy(self) -> bool:
        """Whether no noise is needed: temperature below 1e-6, or top_k = 1."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def penalized(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    def end_ids(self, eos_ids: Iterable[int]) -> frozenset[int]:
        """Tokens that end the text: `eos_ids` and `stop_token_ids`, none with `ignore_eos`."""
        return frozenset() if self.ignore_eos else frozenset(eos_ids) | frozenset(self.stop_token_ids)

    def validate(self, vocab_size: int | None = None) -> None:
        """Check every value; token ids against `vocab_size` when it is given.

        Raises:
            ConfigError: the message names the value and the limit.
        """
        self._check_counts()
        self._check_numbers()
        self._check_texts()
        self._check_ids(math.inf if vocab_size is None else vocab_size)

    def _check_counts(self) -> None:
        _integer("max_tokens", self.max_tokens, 0)
        _integer("min_tokens", self.min_tokens, 0)
        _integer("top_logprobs", self.top_logprobs, 0)
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; raise max_tokens"
            )
        if self.top_k != -1:
            _integer("top_k", self.top_k, 1, "; -1 means all")
        if self.seed is not None and not _is_int(self.seed):
            raise ConfigError(f"seed must be an integer or None, got {self.seed!r}")

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 2.0, open_low=True)

    def _check_texts(self) -> None:
        for name in ("stop", "stop_regex"):
            texts = getattr(self, name)
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{name} must be a tuple of strings, got {texts!r}; write {name}=(text,)")
            if "" in texts:
                raise ConfigError(
                    f"{name} holds an empty string, which would end every text at once; leave it out"
                )
        if (length := sum(map(len, self.stop))) > MOST_STOPS:
            raise ConfigError(f"stop has {length} characters in all; give at most {MOST_STOPS}")
        if self.stop_regex:
            from sgl.runtime.text.stop_patterns import check_patterns  # rarely wanted

            check_patterns(self.stop_regex)

    def _check_ids(self, limit: float) -> None:
        for token in (*self.stop_token_ids, *self.logit_bias):
            if not _is_int(token) or not 0 <= token < limit:
                raise ConfigError(f"token ids must be integers from 0 to below {limit}, got {token!r}")
        for token, bias in self.logit_bias.items():
            if not isinstance(bias, (int, float)) or math.isnan(bias) or bias > LARGEST:
                raise ConfigError(f"logit_bias[{token}] must be a number up to {LARGEST:g}, got {bias!r}")


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _integer(name: str, value: Any, low: int, hint: str = "") -> None:
    if not _is_int(value) or value < low:
        raise ConfigError(f"{name} must be an integer of at least {low}{hint}, got {value!r}")


def _number(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    inside = isinstance(value, (int, float)) and low <= value <= high and math.isfinite(value)
    if not inside or (open_low and value == low):
        brackets = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if math.isinf(high) else ']'}"
        raise ConfigError(f"{name} must lie in {brackets}, got {value!r}")
    if value > LARGEST or (open_low and value < SMALLEST):
        raise ConfigError(f"{name}={value!r} is beyond single precision; keep it between {SMALLEST:g} and {LARGEST:g}")
