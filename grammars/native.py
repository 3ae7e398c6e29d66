"""The C core through ctypes: the same interface as `twin.PythonCore`, without the GIL while it works."""

from __future__ import annotations

import ctypes
import importlib.util
from array import array
from ctypes import POINTER, c_int32, c_void_p
from functools import cache
from typing import Any

import numpy as np

from sgl.grammars.network import CLASS_BYTES, FIELDS, Network
from sgl.grammars.twin import Thread
from sgl.grammars.vocabulary import Trie, Vocabulary


class _Trie(ctypes.Structure):
    _fields_ = [
        ("size", c_int32),
        ("byte", c_void_p),
        ("depth", c_void_p),
        ("skip", c_void_p),
        ("first", c_void_p),
        ("ids", c_void_p),
    ]

    @classmethod
    def of(cls, trie: Trie) -> _Trie:
        columns = (trie.byte, trie.depth, trie.skip, trie.first, trie.ids)
        return cls(len(trie), *(column.ctypes.data for column in columns))


class _Vocabulary(ctypes.Structure):
    _fields_ = [
        ("all", _Trie),
        ("rest", _Trie),
        ("slices", c_void_p),
        ("longest", c_int32),
        ("words", c_int32),
        ("reach", c_int32),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "core_new": (c_void_p, [POINTER(_Vocabulary), c_int32]),
    "core_free": (None, [c_void_p]),
    "core_extend": (c_int32, [c_void_p, *[c_void_p, c_int32] * 4]),
    "core_start": (c_int32, [c_void_p]),
    "core_step": (c_int32, [c_void_p, c_int32, c_int32]),
    "core_advance": (c_int32, [c_void_p, c_int32, ctypes.c_char_p, c_int32]),
    "core_canonical": (c_int32, [c_void_p, c_int32]),
    "core_plain_room": (c_int32, [c_void_p, c_int32]),
    "core_mask": (c_int32, [c_void_p, c_int32, c_void_p]),
    "core_forced": (c_int32, [c_void_p, c_int32, c_void_p, c_int32]),
    "core_size": (c_int32, [c_void_p]),
    "core_wanted": (c_int32, [c_void_p]),
    "core_final": (c_int32, [c_void_p, c_int32]),
    "core_live": (None, [c_void_p, c_int32, c_void_p]),
    "core_thread_count": (c_int32, [c_void_p, c_int32]),
    "core_threads": (None, [c_void_p, c_int32, c_void_p]),
    "core_frame": (None, [c_void_p, c_int32, c_void_p]),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled core, or None where the package was installed without it."""
    spec = importlib.util.find_spec("sgl.grammars._core")
    if spec is None or spec.origin is None:
        return None
    try:
        loaded = ctypes.CDLL(spec.origin)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return loaded


def _tables(vocabulary: Vocabulary) -> _Vocabulary:
    """The vocabulary's arrays as the core sees them, made once."""
    if vocabulary.native is None:
        slices = vocabulary.slices
        vocabulary.native = _Vocabulary(
            _Trie.of(vocabulary.trie),
            _Trie.of(vocabulary.rest),
            slices.ctypes.data,
            len(slices) - 1,
            vocabulary.words,
            vocabulary.reach,
        )
    return vocabulary.native


class NativeCore:
    def __init__(self, network: Network, vocabulary: Vocabulary, limit: int) -> None:
        loaded = library()
        if loaded is None:
            raise RuntimeError("the C core is not built; reinstall the package or use PythonCore")
        self._library = loaded
        self._network = network
        self._vocabulary = vocabulary
        self._core = loaded.core_new(_tables(vocabulary), limit)
        if not self._core:
            raise MemoryError("no memory for a grammar's automaton")
        self.extend()

    def __del__(self) -> None:
        if getattr(self, "_core", None):
            self._library.core_free(self._core)

    @property
    def wanted(self) -> int:
        return int(self._library.core_wanted(self._core))

    def extend(self) -> None:
        """Copy the network's new rows; the caller's lock keeps the tables from growing meanwhile."""
        network = self._network
        classes = (ctypes.c_char * len(network.classes)).from_buffer_copy(network.classes)
        code = self._library.core_extend(
            self._core,
            *(network.nodes.buffer_info()[0], len(network.nodes) // FIELDS),
            *(network.edges.buffer_info()[0], len(network.edges)),
            *(ctypes.addressof(classes), len(network.classes) // CLASS_BYTES),
            *(network.entries.buffer_info()[0], len(network.entries)),
        )
        if code:
            raise MemoryError("no memory for a grammar's tables")

    def size(self) -> int:
        return int(self._library.core_size(self._core))

    def start(self) -> int:
        return int(self._library.core_start(self._core))

    def step(self, state: int, byte: int) -> int:
        return int(self._library.core_step(self._core, state, byte))

    def advance(self, state: int, data: bytes) -> int:
        return int(self._library.core_advance(self._core, state, data, len(data)))

    def accepting(self, state: int) -> bool:
        return bool(self._library.core_final(self._core, state))

    def canonical(self, state: int) -> int:
        return int(self._library.core_canonical(self._core, state))

    def plain_room(self, state: int) -> int:
        return int(self._library.core_plain_room(self._core, state))

    def live(self, state: int) -> int:
        found = bytearray(CLASS_BYTES)
        buffer = (ctypes.c_char * CLASS_BYTES).from_buffer(found)
        self._library.core_live(self._core, state, ctypes.addressof(buffer))
        return int.from_bytes(found, "little")

    def threads(self, state: int) -> list[Thread]:
        found = array("i", bytes(12 * self._library.core_thread_count(self._core, state)))
        self._library.core_threads(self._core, state, found.buffer_info()[0])
        return list(zip(found[::3], found[1::3], found[2::3], strict=True))

    def frame(self, index: int) -> Thread:
        found = array("i", (0, 0, 0))
        self._library.core_frame(self._core, index, found.buffer_info()[0])
        return found[0], found[1], found[2]

    def mask(self, state: int, out: np.ndarray) -> int:
        return int(self._library.core_mask(self._core, state, out.ctypes.data))

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        buffer = ctypes.create_string_buffer(most)
        found = self._library.core_forced(self._core, state, buffer, most)
        return (b"", found) if found < 0 else (buffer.raw[:found], 0)
