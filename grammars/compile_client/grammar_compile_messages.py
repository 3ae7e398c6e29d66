"""Messages between a process and the one that compiles its grammars: pickles with a number.

A question carries a new number, an answer that of its question. NO_VOCABULARY asks for no answer.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from sgl.common.child_process.known_class_pickles import pack

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


class AskNetwork(NamedTuple):
    """A method of `ServedNetwork`, answered by what it returns."""

    network: int
    method: str
    arguments: tuple[Any, ...]


class ForgetNetworks(NamedTuple):
    """Networks that are no longer read. It is not answered."""

    networks: list[int]


class NetworkGrown(NamedTuple):
    """What was added to the tables of a network, the entries of all rules, and what the `TextPieces` added are of.

    All in a few long pieces, which are copied at once: decoding waits as long as Python works on them.
    """

    nodes: bytes
    edges: bytes
    classes: bytes
    entries: bytes
    texts: list[tuple[str, str, bool]]


class NetworkLost(Exception):
    """A network is not held any more."""


class RequestNotSent(Exception):
    """A question that was not answered: it holds what the other process cannot read, or there is no process."""


def packed(request: Any) -> bytes:
    """Only a grammar's source is the caller's. Raises RequestNotSent."""
    try:
        return pack(request) if isinstance(request, MakeNetwork) else pickle.dumps(request)
    except Exception as error:  # whatever is in it may do anything
        raise RequestNotSent from error
