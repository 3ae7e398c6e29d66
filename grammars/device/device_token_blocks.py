"""The tokens in the order in which a device walks them: by length, then by bytes, in blocks of one length.

Threads of a block then take the same number of steps, and those of neighbours read the same rows.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from sgl.grammars.device.device_state_codes import END_PLACE, LANES, NO_PLACE
from sgl.grammars.tokens.vocabulary import Vocabulary


class TokenBlocks:
    """Attributes:
    lengths: int32 [blocks], bytes of each token of a block.
    offsets: int32 [blocks], where a block begins in `words`.
    words: int32; a block is [ceil(length / 4), LANES], byte i of a token in bits 8 * (i % 4) of word i // 4.
    places: int32 [V], block * LANES + lane of a token, or NO_PLACE or END_PLACE.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.places = np.full(vocabulary.size, NO_PLACE, np.int32)
        self.places[list(vocabulary.eos_ids)] = END_PLACE
        self._lengths: list[int] = []
        self._parts: list[np.ndarray] = []
        tokens = vocabulary.tokens
        ordered = sorted(vocabulary.text_ids, key=lambda i: (len(tokens[i]), tokens[i]))
        for length, group in groupby(ordered, lambda i: len(tokens[i])):
            self._add(length, list(group), tokens)
        self.lengths = np.array(self._lengths, np.int32)
        sizes = (self.lengths + 3) // 4 * LANES
        self.offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
        self.words = np.concatenate([np.zeros(0, np.int32), *self._parts])

    def __len__(self) -> int:
        return len(self.lengths)

    def _add(self, length: int, ids: list[int], tokens: tuple[bytes, ...]) -> None:
        """The blocks of one length; the last token is repeated in the lanes that are left over."""
        self.places[ids] = len(self._lengths) * LANES + np.arange(len(ids))
        data = np.frombuffer(b"".join(tokens[i] for i in ids), np.uint8).reshape(len(ids), length)
        data = np.pad(data, ((0, -len(ids) % LANES), (0, 0)), mode="edge")
        data = np.pad(data, ((0, 0), (0, -length % 4)))
        quads = data.reshape(-1, LANES, data.shape[1] // 4, 4).swapaxes(1, 2)
        self._parts.append(np.ascontiguousarray(quads).view("<i4").astype(np.int32).ravel())
        self._lengths += [length] * len(quads)
