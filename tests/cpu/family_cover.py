"""A small set of the families' cases in which each value of each field of a specification's parts occurs.

Executors know parts, not families: what one case of a part shows, another case with the same part shows again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import transformers
from family_checks import SIZES

from sgl.runtime.models import ModelSpec, read_model

NAMES = ("TensorNames", "architecture str")  # of what is in files

Cases = Mapping[str, tuple[str, dict[str, Any]]]  # a class of transformers and keys of its configuration


def covered(cases: Cases, names: bool = False, refused: Callable[[ModelSpec], str | None] | None = None) -> list[Any]:
    """All cases as parameters of a test; those outside the cover run in the whole suite only.

    names: whether architectures and the names of tensors count too.  refused: why the tested executor refuses a model.
        Parts of such a model are not covered by it, and one model of each reason is enough.
    """
    found: dict[str, set[Hashable]] = {}
    for case, (architecture, keys) in cases.items():
        model = spec_of(architecture, keys)
        why = refused and refused(model)
        found[case] = {why} if why else set(traits(model, () if names else NAMES))
    kept = smallest_cover(found)
    return [case if case in kept else pytest.param(case, marks=pytest.mark.whole) for case in cases]


def spec_of(architecture: str, keys: Mapping[str, Any]) -> ModelSpec:
    kind = getattr(transformers, architecture).config_class
    config = kind(**{key: value for key, value in (SIZES | keys).items() if value is not ...})
    values = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [architecture]}
    return read_model(values)


def traits(part: Any, without: tuple[str, ...] = ()) -> Iterator[Hashable]:
    """Of each part within: its fields with their values."""
    if is_dataclass(part):
        name = type(part).__name__
        for field in fields(part):
            value = getattr(part, field.name)
            if not f"{field.name} {type(value).__name__}".endswith(without):
                yield name, field.name, trait_of(value)
                yield from traits(value, without)
    elif isinstance(part, Mapping | list | tuple):
        for value in part.values() if isinstance(part, Mapping) else part:
            yield from traits(value, without)


def trait_of(value: Any) -> Hashable:
    """A choice is itself; of a number counts whether it is 0, 1 or another, of a list whether it is empty."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return type(value).__name__, value if value in (0, 1) else "other"
    return type(value).__name__, is_dataclass(value) or bool(value)


def smallest_cover(found: Mapping[str, Iterable[Hashable]]) -> list[str]:
    """Greedy: the case with the most of what is missing, until nothing is."""
    sets = {case: set(each) for case, each in found.items()}
    missing, chosen = set().union(*sets.values()), []
    while missing:
        chosen.append(max(sets, key=lambda case: len(sets[case] & missing)))
        missing -= sets[chosen[-1]]
    return chosen
