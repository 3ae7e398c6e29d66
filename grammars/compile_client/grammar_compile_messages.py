"""Messages between a process and the one that compiles its grammars: pickles with a number.

A question carries a new number, an answer that of its question. NO_VOCABULARY asks for no answer.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from sgl.grammars.algebra.unordered_parts import PartSubset

NO_VOCABULARY = 0
Thread = tuple[int, int, int]


class VocabularyMessage(NamedTuple):
    """The tokens of a vocabulary, which some grammars depend on. It is not answered."""

    vocabulary: int
    tokens: Sequence[bytes]
    eos_ids: Sequence[int]
    special_ids: Sequence[int]


class MakeNetwork(NamedTuple):
    """A fresh network of a recipe; answered by `NetworkGrown`. vocabulary: NO_VOCABULARY where it does not matter.

    folder: of the disk cache, None without one.
    """

    network: int
    kind: str
    source: Any
    shown: frozenset[int]
    vocabulary: int
    folder: str | None


class BuildRule(NamedTuple):
    """Lower a rule, answered by `NetworkGrown`."""

    network: int
    rule: int


class FinishNetwork(NamedTuple):
    """Build every rule but those that know their end, as far as there are not too many nodes; answered by
    `NetworkFinished`.
    """

    network: int
    most: int


class FindShortestEnd(NamedTuple):
    """A shortest text from a state, which is given by its threads, to an end; answered by bytes."""

    network: int
    threads: list[Thread]
    frames: dict[int, list[Thread]]
    subsets: dict[int, PartSubset]


class NameRule(NamedTuple):
    """The name of a rule, answered by a text."""

    network: int
    rule: int


class ForgetNetworks(NamedTuple):
    """Networks that are no longer read. It is not answered."""

    networks: list[int]


class NetworkGrown(NamedTuple):
    """What was added to the tables of a network, and the entries of all rules.

    All in a few long pieces, which are copied at once: decoding waits as long as Python works on them.
    """

    nodes: bytes
    edges: bytes
    classes: bytes
    entries: bytes


class NetworkFinished(NamedTuple):
    grown: NetworkGrown
    ends: dict[int, bytes]


class UnreadableRequest(NamedTuple):
    """The answer to what cannot be read there, such as an instance of a class that only the program that asks has."""


class NetworkLost(NamedTuple):
    """The answer where a network is not held any more."""


class RequestNotSent(Exception):
    """A question that was not answered: it holds what cannot be sent, or there is no process that could."""


def packed(request: Any) -> bytes:
    try:
        return pickle.dumps(request)
    except Exception as error:  # whatever is in it may do anything
        raise RequestNotSent from error


class _Unpickler(pickle.Unpickler):
    """Of what is loaded here already: a module of the program that asks may do anything when it is imported."""

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "__main__" or module not in sys.modules:
            raise pickle.UnpicklingError(f"{module}.{name} is not known here")
        return super().find_class(module, name)


def unpacked(data: bytes) -> Any:
    """What was asked; Unread where it cannot be read."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception:  # whatever is in it may do anything
        return UnreadableRequest()
