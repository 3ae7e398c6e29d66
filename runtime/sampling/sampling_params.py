"""What a caller may ask of one generation."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sgl.runtime.common.argument_checks import WORD, check_real, check_whole, plain, shown
from sgl.runtime.errors import ConfigError, check_text

GREEDY_BELOW = 1e-6  # temperatures under this mean greedy
MOST_IDS = 1 << 20  # tokens that are named: more than a vocabulary has
MOST_STOPS = 10_000  # characters of all stops together: looking for them takes room for each
SMALLEST, LARGEST = 1e-30, 1e30  # what is beyond could be 0 or infinity in single precision, in which it is used


OTHER_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def accepted_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that they have here. Raises ConfigError for two names of one with different values."""
    options = {name: value for name, value in given.items() if name not in OTHER_NAMES}
    for other, name in OTHER_NAMES.items():
        if other in given and options.setdefault(name, given[other]) != given[other]:
            both = f"{name} is {shown(options[name])} and {other} is {shown(given[other])}"
            raise ConfigError(f"{both}, but they are the same option; give one of them")
    return options


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one `generate`. `validate()` raises ConfigError naming the bad value.

    A temperature below 1e-6 means greedy; top_k = -1 means all tokens. max_tokens = 0 samples nothing and, if logprobs
    are requested, returns one row of next-token logprobs; None means up to the end of the context. With a `seed` the
    random noise depends only on (seed, position), not on the batch; None draws a new seed.
    """

    max_tokens: int | None = 128
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
    close_at_limit: bool = False  # constrained: finish by the grammar's shortest_end() at the limit
    error_on_truncation: bool = False  # constrained: raise TruncatedError when cut by the limit, and not closed
    speculation: bool = True  # where the engine drafts: for this text too; False: nor is anything learned from it

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
        """Check every value, and token ids against `vocab_size` if given.

        Raises: ConfigError: the message names the value and the limit.
        """
        self._check_counts()
        self._check_numbers()
        self._check_texts()
        self.check_ids(math.inf if vocab_size is None else vocab_size)

    def checked(self) -> SamplingParams:
        """Return the validated options with plain Python numbers in place of NumPy's and other types."""
        self.validate()
        odd: dict[str, Any] = {}
        for names, bare in ((_COUNTS, operator.index), (_NUMBERS, float), (_SWITCHES, bool)):
            values = {name: getattr(self, name) for name in names}
            odd |= {name: bare(plain(value)) for name, value in values.items() if type(value) not in _OWN}
        return replace(self, **odd) if odd else self

    def _check_counts(self) -> None:
        least, _ = (check_whole(name, getattr(self, name), 0) for name in ("min_tokens", "top_logprobs"))
        most = None if self.max_tokens is None else check_whole("max_tokens", self.max_tokens, 0)
        if most is not None and least > most:
            raise ConfigError(f"min_tokens={least} is above max_tokens={most}; raise max_tokens")
        if plain(self.top_k) != -1 or not _is_int(self.top_k):
            check_whole("top_k", self.top_k, 1, hint="; -1 means all")
        if self.seed is not None:
            if not _is_int(self.seed):
                raise ConfigError(f"seed must be an integer or None, got {shown(self.seed)}")
            check_whole("seed", self.seed, -WORD, 2 * WORD - 1)
        for name in _SWITCHES:
            if type(value := getattr(self, name)).__name__ not in ("bool", "bool_", "int"):  # NumPy's are as good
                raise ConfigError(f"{name} must be True or False, got {shown(value)}")

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
            if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{name} must be a tuple of strings, got {shown(texts)}; write {name}=(text,)")
            if "" in texts:
                raise ConfigError(f"{name} holds an empty string, which would end every text at once; leave it out")
        for text in (*self.stop, *self.stop_regex):
            check_text(text, "a stop")
        if (length := sum(map(len, self.stop))) > MOST_STOPS:
            raise ConfigError(f"stop has {length} characters in all; give at most {MOST_STOPS}")
        if self.stop_regex:
            from sgl.runtime.text.stop_patterns import check_patterns  # rarely wanted

            check_patterns(self.stop_regex)

    def check_ids(self, limit: float) -> None:
        """Raise ConfigError unless all given token ids are below `limit` and their biases are numbers."""
        if not isinstance(self.logit_bias, Mapping):
            raise ConfigError(f"logit_bias must be a dict of numbers by token id, got {shown(self.logit_bias)}")
        if isinstance(self.stop_token_ids, str) or not isinstance(self.stop_token_ids, Collection):
            raise ConfigError(f"stop_token_ids must be a tuple of token ids, got {shown(self.stop_token_ids)}")
        for name in ("logit_bias", "stop_token_ids"):
            if (count := len(getattr(self, name))) > MOST_IDS:
                raise ConfigError(f"{name} names {count} tokens; give at most {MOST_IDS}")
        for token in (*self.stop_token_ids, *self.logit_bias):
            if not _is_int(token) or not 0 <= token < limit:
                raise ConfigError(f"token ids must be integers from 0 to below {limit}, got {shown(token)}")
        for token, bias in self.logit_bias.items():
            if not _is_bias(bias):
                raise ConfigError(f"logit_bias[{token}] must be a number up to {LARGEST:g}, got {shown(bias)}")


_OWN = {int, float, bool, type(None)}
_COUNTS = ("max_tokens", "min_tokens", "top_k", "top_logprobs", "seed")
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_SWITCHES = (
    "keep_stop",
    "ignore_eos",
    "skip_special_tokens",
    "logprobs",
    "close_at_limit",
    "error_on_truncation",
    "speculation",
)


def _is_int(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except Exception:
        return False


def _is_bias(value: Any) -> bool:
    """-inf is one: the token is never chosen."""
    return isinstance(value, int | float) and value <= LARGEST  # nan is not


def _number(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    number = check_real(name, value, low, high, open_low)
    if number > LARGEST or (open_low and number < SMALLEST):
        raise ConfigError(f"{name}={number!r} is beyond single precision; keep it between {SMALLEST:g} and {LARGEST:g}")
