"""The C core through ctypes: the interface of `python_automaton_core.PythonCore`, without the GIL while it works."""

from __future__ import annotations

import ctypes
import importlib
import threading
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.unordered_parts import PartSubset
from sgl.grammars.automaton.automaton_work_budget import UNLIMITED, WorkBudget
from sgl.grammars.automaton.state_closure import Thread
from sgl.grammars.network.transition_network import CLASS_BYTES, FIELDS, TransitionNetwork
from sgl.grammars.tokens.character_families import MOST_CHARS, CharacterFamily
from sgl.grammars.tokens.token_trie import TokenTrie
from sgl.grammars.tokens.vocabulary import Vocabulary


class _Trie(ctypes.Structure):
    _fields_ = [("size", c_int32), ("nodes", c_void_p), ("ids", c_void_p), ("roots", c_void_p)]

    @classmethod
    def of(cls, trie: TokenTrie) -> _Trie:
        return cls(len(trie), *(column.ctypes.data for column in (trie.nodes, trie.ids, trie.roots)))


class _Family(ctypes.Structure):
    _fields_ = [
        ("exits", _Trie),
        ("rows", c_void_p),
        ("spellings", c_void_p),
        ("longest", c_int32),
        ("most", c_int32),
        ("spelled", c_int32),
    ]

    @classmethod
    def of(cls, family: CharacterFamily) -> _Family:
        return cls(
            _Trie.of(family.exits),
            family.rows.ctypes.data,
            family.spellings.ctypes.data,
            len(family.rows) - 1,
            MOST_CHARS,
            len(family.spellings),
        )


class _Vocabulary(ctypes.Structure):
    _fields_ = [
        ("all", _Trie),
        ("rest", _Trie),
        ("families", POINTER(_Family)),
        ("eos", c_void_p),
        ("family_count", c_int32),
        ("words", c_int32),
        ("reach", c_int32),
    ]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> _Vocabulary:
        families = [_Family.of(family) for family in vocabulary.families]
        return cls(
            _Trie.of(vocabulary.trie),
            _Trie.of(vocabulary.rest),
            (_Family * len(families))(*families),
            vocabulary.eos_row.ctypes.data,
            len(families),
            vocabulary.words,
            vocabulary.reach,
        )


_making_tables = threading.Lock()
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "core_new": (c_void_p, [POINTER(_Vocabulary), c_int32]),
    "core_free": (None, [c_void_p]),
    "core_extend": (c_int32, [c_void_p, *[c_void_p, c_int32] * 4]),
    "core_start": (c_int32, [c_void_p]),
    "core_step": (c_int32, [c_void_p, c_int32, c_int32]),
    "core_advance": (c_int32, [c_void_p, c_int32, ctypes.c_char_p, c_int32]),
    "core_canonical": (c_int32, [c_void_p, c_int32]),
    "core_either": (c_int32, [c_void_p, c_int32, c_int32]),
    "core_takes_plain": (c_int32, [c_void_p, c_int32]),
    "core_mask": (c_int64, [c_void_p, c_int32, c_void_p]),
    "core_masks": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int32, POINTER(c_int64), c_int32]),
    "core_allow": (None, [c_void_p, c_int64, c_int32]),
    "core_spare": (c_int64, [c_void_p]),
    "core_digest": (c_int64, [c_void_p, c_int32]),
    "core_rows": (c_int32, [c_void_p, c_void_p, c_int32, c_void_p]),
    "core_forced": (c_int32, [c_void_p, c_int32, c_void_p, c_int32]),
    "core_memory": (c_int64, [c_void_p]),
    "core_held": (c_int64, [c_void_p]),
    "core_size": (c_int32, [c_void_p]),
    "core_wanted": (c_int32, [c_void_p]),
    "core_final": (c_int32, [c_void_p, c_int32]),
    "core_live": (None, [c_void_p, c_int32, c_void_p]),
    "core_thread_count": (c_int32, [c_void_p, c_int32]),
    "core_threads": (None, [c_void_p, c_int32, c_void_p]),
    "core_subset": (None, [c_void_p, c_int32, c_void_p]),
    "core_used": (None, [c_void_p, c_int32, c_void_p]),
    "core_frame_length": (c_int32, [c_void_p, c_int32]),
    "core_frame": (None, [c_void_p, c_int32, c_void_p]),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled core, or None where the package was installed without it."""
    try:  # importing it takes the module's lock: another thread may just be doing so
        loaded = ctypes.CDLL(importlib.import_module("sgl.grammars._core").__file__)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    return loaded


def vocabulary_tables(vocabulary: Vocabulary) -> _Vocabulary:
    """The vocabulary's arrays as the core sees them, made once: every core keeps pointers into them."""
    if vocabulary.native is None:
        with _making_tables:
            if vocabulary.native is None:
                vocabulary.native = _Vocabulary.of(vocabulary)
    return vocabulary.native


class NativeCore:
    def __init__(self, network: TransitionNetwork, vocabulary: Vocabulary, limit: int) -> None:
        loaded = library()
        if loaded is None:
            raise RuntimeError("the C core is not built; reinstall the package or use PythonCore")
        self._library = loaded
        self._extension = extension()
        self._network = network
        self._vocabulary = vocabulary
        self._core = loaded.core_new(vocabulary_tables(vocabulary), limit)
        if not self._core:
            raise MemoryError("out of memory for a grammar's automaton")
        self._mask, self._advance = loaded.core_mask, loaded.core_advance
        self._texts = 0  # of the network, that the core knows
        self._out: np.ndarray | None = None
        self._pointer = 0
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
        for pieces in network.texts[self._texts :]:
            self._extension.add_pieces(self._core, pieces.native)
        self._texts = len(network.texts)
        if network.native is not None:
            self._extension.extend(self._core, network.native)
            return
        classes = (ctypes.c_char * len(network.classes)).from_buffer_copy(network.classes)
        code = self._library.core_extend(
            self._core,
            *(network.nodes.buffer_info()[0], len(network.nodes) // FIELDS),
            *(network.edges.buffer_info()[0], len(network.edges)),
            *(ctypes.addressof(classes), len(network.classes) // CLASS_BYTES),
            *(network.entries.buffer_info()[0], len(network.entries)),
        )
        if code:
            raise MemoryError("out of memory for a grammar's tables")

    def allow(self, meter: WorkBudget) -> None:
        self._library.core_allow(self._core, meter.left, meter.hasty)

    def charge(self, meter: WorkBudget) -> None:
        meter.spend(meter.left - self._library.core_spare(self._core))
        self._library.core_allow(self._core, UNLIMITED, False)

    def memory(self) -> int:
        """Bytes held, the vocabulary not counted."""
        return int(self._library.core_memory(self._core))

    def size(self) -> int:
        return int(self._library.core_size(self._core))

    def held(self) -> int:
        """Threads in states and frames, which MAX_HELD bounds."""
        return int(self._library.core_held(self._core))

    def start(self) -> int:
        return int(self._library.core_start(self._core))

    def step(self, state: int, byte: int) -> int:
        return int(self._library.core_step(self._core, state, byte))

    def advance(self, state: int, data: bytes) -> int:
        return self._advance(self._core, state, data, len(data))

    def accepting(self, state: int) -> bool:
        return bool(self._library.core_final(self._core, state))

    def canonical(self, state: int) -> int:
        return int(self._library.core_canonical(self._core, state))

    def either(self, left: int, right: int) -> int:
        return int(self._library.core_either(self._core, left, right))

    def takes_plain(self, state: int) -> bool:
        return bool(self._library.core_takes_plain(self._core, state))

    def live(self, state: int) -> int:
        found = bytearray(CLASS_BYTES)
        buffer = (ctypes.c_char * CLASS_BYTES).from_buffer(found)
        self._library.core_live(self._core, state, ctypes.addressof(buffer))
        return int.from_bytes(found, "little")

    def threads(self, state: int) -> list[Thread]:
        found = array("i", bytes(12 * self._library.core_thread_count(self._core, state)))
        self._library.core_threads(self._core, state, found.buffer_info()[0])
        return list(zip(found[::3], found[1::3], found[2::3], strict=True))

    def frame(self, index: int) -> list[Thread]:
        found = array("i", bytes(12 * self._library.core_frame_length(self._core, index)))
        self._library.core_frame(self._core, index, found.buffer_info()[0])
        return list(zip(found[::3], found[1::3], found[2::3], strict=True))

    def subset(self, index: int) -> PartSubset:
        row = array("i", (0, 0, 0, 0))
        self._library.core_subset(self._core, index, row.buffer_info()[0])
        words = array("I", bytes(4 * row[3]))
        self._library.core_used(self._core, index, words.buffer_info()[0])
        return PartSubset(row[0], sum(word << 32 * i for i, word in enumerate(words)), row[1])

    def piece_end(self, text: int, place: int) -> bytes:
        return bytes(self._extension.piece_end(self._network.texts[text].native, place))

    def mask(self, state: int, out: np.ndarray) -> int:
        if out is not self._out:
            self._out, self._pointer = out, out.ctypes.data
        return self._mask(self._core, state, self._pointer)

    def digest(self, row: np.ndarray) -> int:
        return int(self._library.core_digest(row.ctypes.data, len(row)))

    def rows(self, states: np.ndarray, out: np.ndarray) -> int:
        return int(self._library.core_rows(self._core, states.ctypes.data, len(states), out.ctypes.data))

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        buffer = ctypes.create_string_buffer(most)
        found = self._library.core_forced(self._core, state, buffer, most)
        return (b"", found) if found < 0 else (buffer.raw[:found], 0)


def fill_rows(
    cores: Sequence[NativeCore], states: Sequence[int], rows: np.ndarray, meter: WorkBudget | None = None
) -> list[int]:
    """The masks of some states, each of another core, in uint32 [n, words], in one call without the GIL.

    The caller holds the locks of all the cores. What `NativeCore.mask` would give is given for each; they share the
    work that a meter allows.
    """
    loaded = library()
    assert loaded is not None
    pointers = np.array([core._core for core in cores], np.uintp)
    numbers = np.array(states, np.int32)
    outs = rows.ctypes.data + rows.strides[0] * np.arange(len(cores), dtype=np.uintp)
    digests = np.empty(len(cores), np.int64)
    work = c_int64(UNLIMITED if meter is None else meter.left)
    hasty = meter is not None and meter.hasty
    loaded.core_masks(
        *(a.ctypes.data for a in (pointers, numbers, outs, digests)), len(cores), ctypes.byref(work), hasty
    )
    if meter is not None:
        meter.spend(meter.left - work.value)
    return digests.tolist()
