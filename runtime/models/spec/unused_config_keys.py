"""Keys of a config.json that change nothing in transformers, because its class of that `model_type` does not have them.

The class is asked: its fields, its aliases (`attribute_map`), the names in its methods, and what the model's code reads
of it. Importing transformers takes seconds, so the class's source is searched first. The class is imported only for a
key that is not found there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

READ_BY_ALL = frozenset(
    {  # by the base of all classes, by caches and by masks
        "sliding_window",
        "layer_types",
        "attention_chunk_size",
        "per_layer_config",
        "is_causal",
        "is_encoder_decoder",
    }
)
MOST_KEPT = 64  # model types
ROPE = "rope_parameters"
OF_ROPE = frozenset(
    {ROPE, "rope_scaling", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "head_dim"}
)
_READ = re.compile(r"""\bconfig\.(\w+)|getattr\(\s*[\w.]*config[^,()]*,\s*["'](\w+)["']""")
_NAME = re.compile(r"[A-Za-z][\w-]{0,59}", re.ASCII)
_ENDINGS = ("", "_text", "_text_model")  # endings of model types whose code is in that of a wrapper


def stray_keys(values: Mapping[str, Any], judged: frozenset[str], architecture: str | None = None) -> frozenset[str]:
    """Those of `judged` that transformers' class of `values["model_type"]` does not have.

    architecture: if it is not among the models of that type, its code is not in transformers, as for an unknown type.
        Then no key is stray.
    """
    kind = values.get("model_type")
    if (
        not isinstance(kind, str)
        or not _NAME.fullmatch(kind)
        or judged <= READ_BY_ALL | declared(kind)
        or not _has(kind, architecture)
    ):
        return frozenset()
    known = known_keys(kind)
    return frozenset() if known is None else judged - known - READ_BY_ALL


@lru_cache(MOST_KEPT)
def _has(kind: str, architecture: str | None) -> bool:
    files = [file for folder in _folders(kind) for file in _sources(folder, "modeling")]
    return architecture is None or any(
        re.search(rf"^class {re.escape(architecture)}\b", file.read_text(encoding="utf-8"), re.MULTILINE)
        for file in files
    )


@lru_cache(MOST_KEPT)
def known_keys(kind: str) -> frozenset[str] | None:
    """Every key that the class of a model type may read, or None: transformers has no such text model."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        own = CONFIG_MAPPING[kind]
    except (ImportError, KeyError, AttributeError, ValueError):
        return None
    if "text_config" in getattr(own, "sub_configs", {}):  # a wrapper, which hands keys on to the classes of its parts
        return None
    fields = (
        {field.name for field in dataclasses.fields(own)}
        if dataclasses.is_dataclass(own)
        else set(inspect.signature(own).parameters)
    )
    renamed = {name for pair in getattr(own, "attribute_map", {}).items() for name in pair}
    said = {name for part in _own_classes(own) for code in _codes(part) for name in _names(code)}
    return frozenset(fields | renamed | said | _read_by_code(own) | (OF_ROPE if ROPE in fields else set()))


def _own_classes(own: type) -> Iterator[type]:
    """Without the base of all configurations."""
    return (part for part in own.__mro__ if part.__module__.startswith("transformers.models."))


def _codes(part: type) -> Iterator[CodeType]:
    for value in vars(part).values():
        functions = (
            (value.fget, value.fset)
            if isinstance(value, property)
            else (inspect.unwrap(getattr(value, "__func__", value)),)
        )
        yield from (function.__code__ for function in functions if inspect.isfunction(function))


def spelled(function: FunctionType) -> frozenset[str]:
    """Every name and string in a function, in the functions of its module that it calls, and in tables that it
    names.
    """
    found, done, left = set[str](), set[FunctionType](), [function]
    while left:
        done.add(each := left.pop())
        found.update(_names(each.__code__))
        for value in (each.__globals__.get(name) for name in each.__code__.co_names):
            if inspect.isfunction(value) and value.__module__ == function.__module__ and value not in done:
                left.append(value)
            elif isinstance(value, tuple | frozenset | set | dict):
                found.update(part for part in value if isinstance(part, str))
    return frozenset(found)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names(value)
        else:
            yield from (
                each for each in (value if isinstance(value, tuple | frozenset) else (value,)) if isinstance(each, str)
            )


def _read_by_code(own: type) -> set[str]:
    """What the model's own code reads of its configuration, whether the class has it or not."""
    files = Path(inspect.getfile(own)).parent.glob("modeling_*.py")
    return {name for file in files for pair in _READ.findall(file.read_text(encoding="utf-8")) for name in pair if name}


# without importing it


@lru_cache(MOST_KEPT)
def declared(kind: str) -> frozenset[str]:
    """Keys in the source of the class of a model type; not all of them."""
    files = [file for folder in _folders(kind) for file in _sources(folder, "configuration")]
    classes = [
        node
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    found = {name for node in classes if _kind_of(node) == kind for name in _declared(node)}
    return frozenset(found | (OF_ROPE if ROPE in found else set()))


def _folders(kind: str) -> list[str]:
    return [kind.removesuffix(ending).replace("-", "_") for ending in _ENDINGS if kind.endswith(ending)]


def _sources(folder: str, what: str) -> list[Path]:
    spec = find_spec("transformers")
    places = [Path(place) / "models" / folder for place in (spec.submodule_search_locations or () if spec else ())]
    return [file for place in places for file in sorted(place.glob(f"{what}_*.py"))]


def _kind_of(node: ast.ClassDef) -> Any:
    return next(
        (value.value for name, value in _assigned(node) if name == "model_type" and isinstance(value, ast.Constant)),
        None,
    )


def _declared(node: ast.ClassDef) -> Iterator[str]:
    yield from (
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    )
    for name, value in _assigned(node):
        if name == "attribute_map" and isinstance(value, ast.Dict):
            yield from (
                each.value
                for each in (*value.keys, *value.values)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            yield each.targets[0].id, each.value
