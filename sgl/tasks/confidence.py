"""How sure a model was of each field that it wrote, by the probabilities of the field's tokens.

The probabilities are those under the mask: among the tokens that the grammar allowed. A token that it forced has 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sgl
from sgl.lang.typed import reading_of
from sgl.lang.typed.typed_json import JsonTextParser

from .json_places import JsonObject, JsonPlaces, Schema, properties_inside

Interval = tuple[int, int]  # of characters
_ENTRIES = "output_token_logprobs"


@dataclass(frozen=True)
class FieldConfidence:
    """How sure the model was of one field: probabilities from 0 to 1.

    written: that the field is written here, and no other one and no end in its place; 1 where the grammar leaves no
        choice. Of a field that was left out: that it is left out.
    value: the product of the probabilities of the value's tokens; 1 for a field that was left out.
    per_token: their geometric mean, which does not fall with the length of the value.
    tokens: how many there are.
    """

    written: float
    value: float
    per_token: float
    tokens: int

    @property
    def whole(self) -> float:
        """The probability of the field as a whole: that it is written, with this value."""
        return self.written * self.value


class TokenProbabilities:
    """The log-probabilities of a text's tokens, by their places in it."""

    def __init__(self, text: str, entries: Sequence[Sequence[Any]]) -> None:
        self._logprobs = [entry[0] for entry in entries]
        self._places = token_places(text, [entry[2] for entry in entries])

    def inside(self, interval: Interval) -> list[float | None]:
        """Of the tokens that have characters of an interval."""
        start, end = interval
        pairs = zip(self._places, self._logprobs, strict=True)
        return [logprob for (first, last), logprob in pairs if first < end and last > start]


def token_places(text: str, pieces: Sequence[str]) -> list[Interval]:
    """Where each token's text is. Tokens that share a character, which their texts show as U+FFFD, have one place."""
    places: list[Interval] = []
    at = waiting = 0
    for piece in pieces:
        if "\ufffd" in piece and not text.startswith(piece, at + waiting):
            waiting += 1
            continue
        found = text.find(piece, at) if waiting else at
        places += [(at, found)] * waiting
        at, waiting = found + len(piece), 0
        places.append((found, at))
    return places + [(at, len(text))] * waiting


def logprob_options(s: sgl.State) -> dict[str, bool]:
    """The options of a gen whose confidence is wanted; none where the backend has no such log-probabilities."""
    if not s.stream_executor.backend.masks_logprobs:
        return {}
    return {"return_logprob": True, "masked_logprobs": True, "return_text_in_logprobs": True}


def confidence_of(s: sgl.State, name: str, kind: Any) -> tuple[dict[str, FieldConfidence] | None, str | None]:
    """The confidence of each field of a variable; or None, and why there is none."""
    model, entries = s.stream_executor.backend.get_model_name(), s.get_meta_info(name).get(_ENTRIES)
    if not s.stream_executor.backend.masks_logprobs:
        why = "gives no log-probabilities among what a grammar allows; run on an sgl.Engine"
        return None, f"the backend of {model} {why}"
    if entries is None:
        return None, f"the answer of {model} came without log-probabilities"
    reading = reading_of(kind)
    return confidences(s[name], entries, reading.schema if isinstance(reading, JsonTextParser) else None), None


def confidences(text: str, entries: Sequence[Sequence[Any]], schema: Schema | None) -> dict[str, FieldConfidence]:
    """The confidence of each field of a text by its path (`lines[0].price`; "" where the whole is one value).

    entries: (log-probability, token, text) of each token, as meta_info has them. schema: of a JSON text; None for bare
    texts. Its fields that the text leaves out have one too. A field with a token that the model did not choose, as in a
    text that was closed at its limit, has none.
    """
    probabilities = TokenProbabilities(text, entries)
    if schema is None:
        found = {"": ((0, 0), (0, len(text)))}
    else:
        found = dict(_field_places(text, schema))
    made = ((path, _confidence(probabilities, *places)) for path, places in found.items())
    return {path: one for path, one in made if one is not None}


def _confidence(probabilities: TokenProbabilities, before: Interval, value: Interval) -> FieldConfidence | None:
    written, tokens = probabilities.inside(before), probabilities.inside(value)
    known = [logprob for logprob in (*written, *tokens) if logprob is not None]
    if len(known) < len(written) + len(tokens):
        return None
    chosen = math.fsum(known[len(written) :])
    mean = math.exp(chosen / len(tokens)) if tokens else 1.0
    return FieldConfidence(math.exp(math.fsum(known[: len(written)])), math.exp(chosen), mean, len(tokens))


def _field_places(text: str, schema: Schema) -> Iterator[tuple[str, tuple[Interval, Interval]]]:
    """Of each field the characters before it, where something else could have come, and those of its value."""
    places, properties = JsonPlaces(text), dict(properties_inside(json.loads(text), schema))
    ends = [0, *(leaf.end for leaf in places.leaves)]
    starts = [*(leaf.start for leaf in places.leaves), len(text)]
    before = list(zip(ends, starts, strict=True))
    for leaf, gap in zip(places.leaves, before, strict=False):
        if text[leaf.start] == "{" and leaf.path in properties:
            continue  # an object all of whose fields are left out
        goes_on = text[leaf.end - 1].isdigit()  # what follows a number says that it has no more digits
        yield leaf.path, (gap, (leaf.start, leaf.end + goes_on))
    for one in places.objects:
        for path, index in _left_out(one, properties.get(one.path, [])):
            yield path, (before[index], (0, 0))


def _left_out(found: JsonObject, properties: list[str]) -> Iterator[tuple[str, int]]:
    """The path of each property that an object lacks, with the index of the leaf that was written in its place."""
    order = {name: place for place, name in enumerate(properties)}
    members = dict(found.members)
    for name in properties:
        if name not in members:
            later = (leaf for other, leaf in found.members if order.get(other, -1) > order[name])
            yield f"{found.path}.{name}".removeprefix("."), next(later, found.after)
