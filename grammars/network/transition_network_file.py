"""A finished network as bytes and back: a checksum, a JSON header in one line, and the tables as they are."""

from __future__ import annotations

import hashlib
import json
from array import array
from itertools import accumulate

from sgl.grammars.algebra.expr import NEVER, GrammarRule
from sgl.grammars.network.transition_network import TransitionNetwork

_DIGEST = 32


class StoredNetwork(TransitionNetwork):
    """Tables that were lowered before (nodes, edges, entries, classes); every rule is built."""

    def __init__(self, tables: list[bytes], names: list[str]) -> None:
        super().__init__(NEVER, native=False)
        self.nodes, self.edges, self.entries = (array("i", table) for table in tables[:3])
        self.classes = bytearray(tables[3])
        self.rules = [GrammarRule(name, lambda: NEVER) for name in names]


def pack(network: TransitionNetwork, key: str) -> bytes:
    """The bytes of a network whose rules are all built."""
    tables = [network.nodes.tobytes(), network.edges.tobytes(), network.entries.tobytes(), bytes(network.classes)]
    header = {"key": key, "sizes": [len(table) for table in tables], "rules": [rule.name for rule in network.rules]}
    body = b"".join([json.dumps(header).encode(), b"\n", *tables])
    return hashlib.sha256(body).digest() + body


def unpack(data: bytes, key: str) -> TransitionNetwork | None:
    """The network of a file; None where the file is damaged or another grammar's."""
    body = data[_DIGEST:]
    if hashlib.sha256(body).digest() != data[:_DIGEST]:
        return None
    head, _, rest = body.partition(b"\n")
    header = json.loads(head)
    if header["key"] != key:
        return None
    ends = list(accumulate(header["sizes"]))
    tables = [rest[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return StoredNetwork(tables, header["rules"])
