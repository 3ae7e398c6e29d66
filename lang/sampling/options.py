"""Sampling options as a program gives them: what is None is inherited."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..errors import BadValueError, check_text, error_message_of, shown
from .gen_options import GivenOptions
from .option_table import OTHER_NAMES, PROGRAM_OPTIONS

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""

DTYPE_REGEXES = {"int": REGEX_INT, "float": REGEX_FLOAT, "bool": REGEX_BOOL, "str": REGEX_STR}
NUMBER_STOPS = (" ", "\n")


class SamplingOptions(GivenOptions):
    """Options of one gen or of a whole run; None means "as the run says", then the default.

    `stop` and `stop_regex` are tuples of strings; `json_schema` and `structural_tag` are JSON text; `ebnf` is
    a grammar; `dtype` is one of int, float, bool and str (as text); `timeout` is in seconds, from the moment
    the gen is appended.
    """

    __slots__ = ()

    def over(self, base: SamplingOptions) -> SamplingOptions:
        """These options, with `base` where they say nothing. Lists replace, they are not joined."""
        own, others = _values(self), _values(base)
        return SamplingOptions(*[b if a is None else a for a, b in zip(own, others, strict=True)])

    def asks(self, name: str) -> bool:
        """Whether an option is given, and as something else than its default."""
        value = getattr(self, name)
        return value is not None and value != PROGRAM_OPTIONS[name].default

    def for_sample(self, index: int) -> SamplingOptions:
        """The options of one of `n` samples: the first one's are these, the others have separate seeds."""
        if index == 0 or self.seed is None:
            return self
        return replace(self, seed=derive_seed(self.seed, 0, index))

    @property
    def pattern(self) -> str | None:
        """The regular expression that the output must match: that of the dtype wins over `regex`."""
        return DTYPE_REGEXES[self.dtype] if self.dtype else self.regex

    @property
    def stops(self) -> tuple[str, ...]:
        stop = self.stop or ()
        return stop + NUMBER_STOPS if self.dtype in ("int", "float") else stop


NAMES = tuple(PROGRAM_OPTIONS)
_values = attrgetter(*NAMES)
_ASKED = ("logit_bias", "return_logprob", "top_logprobs_num")  # None unless asked for

DEFAULTS = SamplingOptions(**{name: each.default for name, each in PROGRAM_OPTIONS.items() if name not in _ASKED})

RUN_DEFAULTS = replace(DEFAULTS, max_new_tokens=None)  # `limits.with_limit` decides for each gen

# min_new_tokens and the constraints belong to one gen, never to a whole run.
CONSTRAINTS = ("dtype", "regex", "json_schema", "ebnf", "structural_tag")
RUN_NAMES = frozenset(name for name, option in PROGRAM_OPTIONS.items() if option.in_run) | {"max_tokens"}


def make_options(**given: Any) -> SamplingOptions:
    """Checked and normalised options. Raises BadValueError naming the value."""
    asked = {name: value for name, value in given.items() if value is not None}
    for name, own in OTHER_NAMES.items():
        if name in asked and own in asked and asked[name] != asked[own]:
            conflict = f"{name} is {shown(asked[name])} and {own} is {shown(asked[own])}"
            raise BadValueError(f"{conflict}, but they are the same option; give one of them")
    return SamplingOptions(**{OTHER_NAMES.get(name, name): _normalise(name, value) for name, value in asked.items()})


def derive_seed(seed: int, *path: int) -> int:
    """The seed of a place in a run: forks and batch items must not share their noise."""
    digest = hashlib.blake2b(repr((seed, *path)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


def schema_text(schema: Any) -> str:
    """JSON text of a schema given as text, dict, bool or a class with `model_json_schema` (pydantic)."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, dict | bool):
        return json.dumps(schema, ensure_ascii=False)
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return json.dumps(_repeatable(schema.model_json_schema()), ensure_ascii=False)
    raise BadValueError(f"json_schema is {schema!r}; give JSON text, a dict or a pydantic model class")


def _repeatable(schema: Any) -> Any:
    """Sets, as a model reads them: a list with repeated items is a smaller set;
    only where its size counts they differ.
    """
    if isinstance(schema, list):
        return [_repeatable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_set = schema.get("type") == "array" and schema.get("uniqueItems") is True and not schema.get("minItems")
    return {name: _repeatable(part) for name, part in schema.items() if not (is_set and name == "uniqueItems")}


def _normalise(name: str, value: Any) -> Any:
    """Raises BadValueError for whatever its rule cannot make something of."""
    normalise = _NORMALISERS.get(name)
    try:
        return normalise(name, value) if normalise else value
    except BadValueError:
        raise
    except Exception as error:
        raise BadValueError(f"{name} is {shown(value)}, which cannot be used: {error_message_of(error)}") from error


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise BadValueError(f"{name} is {shown(value)}; give a string or a list of strings")
    strings = (value,) if isinstance(value, str) else tuple(value)
    for string in strings:
        if not isinstance(string, str):
            raise BadValueError(f"{name} holds {shown(string)}; give a string or a list of strings")
        check_text(string, f"{name}")
    return strings


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_regex(name, pattern) for pattern in _strings(name, value))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    ids = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(hasattr(token, "__index__") for token in ids):
        raise BadValueError(f"{name} is {shown(value)}; give a list of token ids, which are whole numbers")
    return tuple(int(token) for token in ids)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValueError(f"{name} is {shown(value)}; give a whole number")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValueError(f"{name} is {shown(value)}; give a number")
    return float(value)


def _count(name: str, value: Any) -> int:
    if _whole(name, value) < 1:
        raise BadValueError(f"{name} is {shown(value)}; give 1 or more")
    return int(value)


def _seconds(name: str, value: Any) -> float:
    if not _number(name, value) > 0:  # nan is not
        raise BadValueError(f"{name} is {shown(value)}; give a number of seconds above 0")
    return float(value)


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValueError(f"{name} is {shown(value)}; give True or False")
    return value


def _bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise BadValueError(f"{name} is {shown(value)}; give a dict of token ids and what is added to their logits")
    return {int(token): float(bias) for token, bias in dict(value).items()}


def _dtype(name: str, value: Any) -> str:
    label = value.__name__ if isinstance(value, type) else value
    if label not in DTYPE_REGEXES:
        raise BadValueError(f"dtype is {shown(value)}; give one of {', '.join(DTYPE_REGEXES)}")
    return str(label)


def _regex(name: str, value: Any) -> str:
    try:
        return str(re.compile(value).pattern)
    except TypeError as error:
        raise BadValueError(f"{name} is {shown(value)}; give a pattern as text") from error
    except (re.error, OverflowError) as error:
        raise BadValueError(
            f"{name} {shown(value)} is not a regular expression: {error}; "
            "put a backslash before a character that stands for itself"
        ) from error


def _document(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadValueError(f"{name} is {shown(value)}; give a text")
    check_text(value, name)
    return value


_NORMALISER_OF = {
    "integer": _whole,
    "samples": _count,
    "number": _number,
    "seconds": _seconds,
    "switch": _switch,
    "texts": _strings,
    "patterns": _patterns,
    "token ids": _ids,
    "biases": _bias,
    "dtype": _dtype,
    "regex": _regex,
    "document": _document,
    "schema": lambda name, value: schema_text(value),
    "tag": lambda name, value: value if isinstance(value, str) else json.dumps(value),
}
_NORMALISERS = {
    name: _NORMALISER_OF.get(PROGRAM_OPTIONS[OTHER_NAMES.get(name, name)].kind) for name in (*NAMES, *OTHER_NAMES)
}
