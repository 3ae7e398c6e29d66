"""What a caller may ask of one generation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any

from sgl.runtime.common.argument_checks import WORD, check_real, check_whole, plain, shown
from sgl.runtime.errors import ConfigError, check_text
from sgl.runtime.sampling.sampling_options import SamplingOption, option, options_of

GREEDY_BELOW = 1e-6  # temperatures under this mean greedy
MOST_IDS = 1 << 20  # tokens that are named: more than a vocabulary has
MOST_STOPS = 10_000  # characters of all stops together: looking for them takes room for each
SMALLEST, LARGEST = 1e-30, 1e30  # what is beyond could be 0 or infinity in single precision, in which it is used

STANDARD = "native openai responses messages ollama"
CHAT = "native openai responses+ ollama"
BOTH = "sglang vllm"

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

    max_tokens: int | None = option(
        128,
        "The most tokens; None: up to the end of the context.",
        "native=max_new_tokens openai responses=max_output_tokens messages ollama=num_predict",
        low=0,
        program="max_new_tokens",
    )
    min_tokens: int = option(
        0,
        "Before so many tokens the text does not end by itself.",
        "native=min_new_tokens openai+",
        low=0,
        program="min_new_tokens",
        in_run=False,
        servers=BOTH,
    )
    temperature: float = option(
        1.0, "Logits are divided by it; below 1e-6 the likeliest token is taken.", STANDARD, low=0
    )
    top_p: float = option(
        1.0, "Only the likeliest tokens that have this probability together.", STANDARD, low=0, high=1, open_low=True
    )
    top_k: int = option(
        -1,
        "Only so many of the likeliest tokens; -1: all.",
        "native openai+ responses+ messages ollama",
        low=1,
        hint="; -1 means all",
        servers=BOTH,
    )
    min_p: float = option(
        0.0, "Only tokens with at least this share of the likeliest one's probability.", low=0, high=1, servers=BOTH
    )
    top_n_sigma: float = option(
        0.0,
        "Only tokens whose logit is within so many standard deviations of the largest; 0: all.",
        "native openai+ responses+ messages+ ollama+",
        low=0,
    )
    frequency_penalty: float = option(
        0.0, "Subtracted from a token's logit for each time that it is in the output.", CHAT, low=-2, high=2
    )
    presence_penalty: float = option(
        0.0, "Subtracted from the logits of the tokens in the output.", CHAT, low=-2, high=2
    )
    repetition_penalty: float = option(
        1.0,
        "Positive logits of tokens in prompt or output are divided by it, negative ones multiplied.",
        "native openai+ responses+ ollama=repeat_penalty",
        low=0,
        high=2,
        open_low=True,
        servers=BOTH,
    )
    logit_bias: dict[int, float] = option({}, "Added to the logits of tokens, by id.", "native openai")  # noqa: RUF009
    stop: tuple[str, ...] = option(
        (), "Texts that end the output.", "native openai responses+ messages=stop_sequences ollama"
    )
    stop_token_ids: tuple[int, ...] = option((), "Tokens that end the output.", "native openai+", servers=BOTH)
    stop_regex: tuple[str, ...] = option(
        (), "Regular expressions whose match ends the output.", "native openai+", kind="patterns", servers="sglang"
    )
    keep_stop: bool = option(
        False, "The stop stays in the text.", "native=no_stop_trim openai+=no_stop_trim", servers="sglang"
    )
    ignore_eos: bool = option(False, "The model's end tokens do not end the output.", "native openai+", servers=BOTH)
    skip_special_tokens: bool = option(True, "Special tokens are left out of the text.", "native openai+", program=None)
    seed: int | None = option(
        None,
        "Of the random noise, which then depends on nothing but it and the position; None: a new one.",
        "native=sampling_seed openai responses+ messages+ ollama",
        low=-WORD,
        high=2 * WORD - 1,
        hint=" or None",
    )
    logprobs: bool = option(
        False,
        "Log-probabilities of the output's tokens are returned.",
        "native=return_logprob openai",
        program="return_logprob",
    )
    top_logprobs: int = option(
        0,
        "Of so many of the likeliest tokens at each place, too.",
        "native=top_logprobs_num openai responses",
        low=0,
        program="top_logprobs_num",
        needed=False,
    )
    masked_logprobs: bool = option(
        False,
        "With a grammar: log-probabilities are among the tokens that it allows; what it forces has 0.",
        "native openai+",
    )
    close_at_limit: bool = option(
        False, "With a grammar: what max_tokens would cut is closed by the shortest valid end.", "native openai+"
    )
    error_on_truncation: bool = option(
        False, "With a grammar: a text that max_tokens cuts is a TruncatedError.", "", needed=False
    )
    speculation: bool = option(
        True,
        "Where the engine drafts tokens: for this text too. False: nor does it learn from it.",
        "native openai+",
        needed=False,
    )

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
        for name, default, check in _CHECKS:
            if (value := getattr(self, name)) is not default:
                check(value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; raise max_tokens")
        self._check_stops()
        self.check_ids(math.inf if vocab_size is None else vocab_size)

    def checked(self) -> SamplingParams:
        """Return the validated options with plain Python numbers in place of NumPy's and other types."""
        self.validate()
        odd = {
            name: bare(plain(value))
            for name, bare in _BARE
            if type(value := getattr(self, name)) not in (int, float, bool, NoneType)
        }
        return replace(self, **odd) if odd else self

    def _check_stops(self) -> None:
        if self.stop and (length := sum(map(len, self.stop))) > MOST_STOPS:
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


def _is_int(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except Exception:
        return False


def _is_bias(value: Any) -> bool:
    """-inf is one: the token is never chosen."""
    return isinstance(value, int | float) and value <= LARGEST  # nan is not


def _integer(option: SamplingOption, value: Any) -> None:
    if (value is None and option.optional) or (_is_int(value) and plain(operator.index(value)) == option.default):
        return
    high = WORD - 1 if option.high == math.inf else int(option.high)
    check_whole(option.name, value, int(option.low), high, option.hint)


def _number(option: SamplingOption, value: Any) -> None:
    number = check_real(option.name, value, option.low, option.high, option.open_low)
    if number > LARGEST or (option.open_low and number < SMALLEST):
        most = f"keep it between {SMALLEST:g} and {LARGEST:g}"
        raise ConfigError(f"{option.name}={number!r} is beyond single precision; {most}")


def _switch(option: SamplingOption, value: Any) -> None:
    if type(value).__name__ not in ("bool", "bool_", "int"):  # NumPy's are as good
        raise ConfigError(f"{option.name} must be True or False, got {shown(value)}")


def _texts(option: SamplingOption, texts: Any) -> None:
    name = option.name
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} must be a tuple of strings, got {shown(texts)}; write {name}=(text,)")
    if "" in texts:
        raise ConfigError(f"{name} holds an empty string, which would end every text at once; leave it out")
    for text in texts:
        check_text(text, "a stop")


_CHECK_OF: dict[str, Callable[[SamplingOption, Any], None]] = {
    "integer": _integer,
    "number": _number,
    "switch": _switch,
    "texts": _texts,
    "patterns": _texts,
}
_BARE_OF: dict[str, Callable[[Any], Any]] = {"integer": operator.index, "number": float, "switch": bool}

SAMPLING_OPTIONS = options_of(SamplingParams)  # by the names of the fields
_CHECKS = tuple(
    (name, option.default, partial(_CHECK_OF[option.kind], option))
    for name, option in SAMPLING_OPTIONS.items()
    if option.kind in _CHECK_OF  # token ids and biases: by `check_ids`, which knows the vocabulary
)
_BARE = tuple((name, _BARE_OF[each.kind]) for name, each in SAMPLING_OPTIONS.items() if each.kind in _BARE_OF)
