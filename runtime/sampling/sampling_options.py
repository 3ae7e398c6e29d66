"""What is known of one sampling option: its kind, range and default, and its name in each protocol.

The table of all is `SAMPLING_OPTIONS` (`sampling_params.py`); checks, request bodies and docs are made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

PROTOCOLS = ("native", "openai", "responses", "messages", "ollama")
EVERYWHERE = "native openai+ responses+ messages+ ollama"  # an extension wherever a standard ends
KINDS = {  # of a field, by its annotation
    "int": "integer",
    "float": "number",
    "bool": "switch",
    "tuple[str, ...]": "texts",
    "tuple[int, ...]": "token ids",
    "dict[int, float]": "biases",
}


class SamplingOption(NamedTuple):
    """One option and the places where callers can give it.

    name: of the field of SamplingParams, or of an option that only programs have.
    kind: integer, number, switch, texts, patterns, token ids, biases; `gen` has more kinds.
    low, high: the range; `open_low`: `low` itself is outside. The default is valid even outside of it.
    hint: what an error adds to the range.
    program: its name in `gen`; None: programs do not give it. in_run: `run` takes it too.
    names: its name in each protocol that has it. extends: those whose standard does not have it.
    servers: of "sglang" and "vllm", those that take it as an extension of OpenAI's protocol.
    needed: False: a server without it may ignore it, since only speed depends on it or the language does the work.
    """

    name: str
    kind: str
    default: Any
    doc: str
    optional: bool = False
    low: float = -inf
    high: float = inf
    open_low: bool = False
    hint: str = ""
    program: str | None = None
    in_run: bool = True
    names: Mapping[str, str] = MappingProxyType({})
    extends: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    needed: bool = True

    def standard_in(self, protocol: str) -> bool:
        """Whether the protocol itself has it, and not only servers that extend it."""
        return protocol in self.names and protocol not in self.extends


def option(
    default: Any,
    doc: str,
    protocols: str = EVERYWHERE,
    *,
    kind: str = "",
    program: str | None = "",
    servers: str = "",
    **others: Any,
) -> Any:
    """The field of one option; its name and, unless `kind` says another, its kind come from the class.

    protocols: those that have it; `native=seed`: under another name; `openai+`: as an extension of the standard.
    program: its name in programs, if another than the field's; None: they do not have it.
    """
    others |= {"names": dict(_names(protocols)), "extends": frozenset(_extended(protocols))}
    entry = SamplingOption("", kind, default, doc, program=program, servers=frozenset(servers.split()), **others)
    metadata = {"option": entry}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(params: Any) -> dict[str, SamplingOption]:
    """The table of a dataclass whose fields are all written with `option`."""
    return {each.name: _completed(each) for each in fields(params)}


def _completed(each: Any) -> SamplingOption:
    written: SamplingOption = each.metadata["option"]
    bare = str(each.type).removesuffix(" | None")
    return written._replace(
        name=each.name,
        kind=written.kind or KINDS[bare],
        optional=bare != each.type,
        program=each.name if written.program == "" else written.program,
        names={protocol: name or each.name for protocol, name in written.names.items()},
    )


def _names(protocols: str) -> Iterable[tuple[str, str]]:
    for word in protocols.split():
        protocol, _, name = word.replace("+", "").partition("=")
        if protocol not in PROTOCOLS:
            raise ValueError(f"there is no protocol {protocol!r}; known ones: {', '.join(PROTOCOLS)}")
        yield protocol, name


def _extended(protocols: str) -> Iterable[str]:
    return (word.partition("=")[0].removesuffix("+") for word in protocols.split() if "+" in word)
