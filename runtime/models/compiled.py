"""A step of few tokens, all layers in one call of the compiled kernels (cpu_step.h), on a CPU.

It rounds where the layers of decoder.py round, which are its oracle: set `Decoder.step` to None, and they do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..attention.cpu import CpuAttention
from ..cache.kv import KVPool
from ..layers import cpu
from ..layers.linear import BlockedLinear
from ..step.batch import Batch
from .claims import model_refusal

if TYPE_CHECKING:
    from .block import Block
    from .decoder import Decoder

MOST_TOKENS = 512  # of a step; what it needs for each of them is kept
MOST_TO_MOVE = 512 * 2**20  # bytes of weights that are laid together: for a moment they are there twice


class CompiledStep:
    """Runs steps of a sealed decoder, one at a time: it keeps the space that they need."""

    def __init__(self, model: Decoder) -> None:
        self._vocabulary = model.config.vocab_size
        self._rotary = next(iter(model.rotaries.values()))
        self._most = min(MOST_TOKENS, cpu.most_rows(model.dtype) or MOST_TOKENS)
        self._model = _words(model)
        windows = [layer.mixer.part.window for layer in model.layers]
        different = sorted(set(windows), key=windows.index)
        self._windows = np.array([different.index(window) for window in windows], np.int64)
        self._firsts = [windows.index(window) for window in different]
        self._numbers = _numbers(model)
        self._space = torch.empty(0, dtype=model.dtype)

    @classmethod
    def of(cls, model: Decoder) -> CompiledStep | None:
        """None where the kernels cannot compute what the model has."""
        if model_refusal(model) is not None or model.layers[0].layer.mixer.dim > cpu.MOST_DIM:
            return None
        products = [model.head.product, *(getattr(*place) for layer in model.layers for place in layer.products())]
        blocked = [product for product in products if isinstance(product, BlockedLinear)]
        if len(blocked) < len(products):
            return None
        if sum(product.weight.nbytes for product in blocked) <= MOST_TO_MOVE:
            BlockedLinear.lay_together(blocked)
        return cls(model)

    def suits(self, batch: Batch, attention: AttentionBackend) -> bool:
        """Whether a planned batch is one for it: few tokens, all attended by the kernels."""
        if len(batch.token_ids) > self._most or batch.pools or not isinstance(attention, CpuAttention):
            return False
        return not batch.plan[0].prefills

    def run(self, batch: Batch, pool: KVPool) -> Tensor:
        """Logits of the batch's `logit_rows`, float32 [R, vocabulary]; those rows are in rising order."""
        rows, results = len(batch.token_ids), len(batch.logit_rows)
        if len(self._space) < rows * self._numbers:
            self._space = self._space.new_empty(rows * self._numbers)
        logits = torch.empty(results, self._vocabulary, dtype=torch.float32)
        seen = [pointer for layer in self._firsts for pointer in batch.plan[layer].tokens.pointers]
        step = np.array([
            rows, results, pool.slots,
            batch.token_ids.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr(),
            0 if results == rows else batch.logit_rows.data_ptr(), self._windows.ctypes.data,
            self._rotary.reach(max(batch.context_lens)).data_ptr(),
            pool.k.data_ptr(), pool.v.data_ptr(), self._space.data_ptr(), logits.data_ptr(), *seen,
        ], np.int64)  # fmt: skip
        cpu.kernels.step(self._model.ctypes.data, step.ctypes.data)
        return logits


def _words(model: Decoder) -> np.ndarray:
    """The struct Model."""
    config, mixer, ffn, norm = model.config, model.layers[0].layer.mixer, model.layers[0].layer.ffn, model.config.norm
    assert norm is not None and model.head.norm is not None
    sizes = [
        cpu.KINDS[model.dtype], len(model.layers), config.hidden_size, ffn.inner, mixer.heads,
        mixer.kv_heads, mixer.dim, round(norm.eps * 1e12),
    ]  # fmt: skip
    places = [model.embedding.table.data_ptr(), model.head.norm.weight.data_ptr()]
    head = cast(BlockedLinear, model.head.product).words
    layers = [_layer_words(layer) for layer in model.layers]
    return np.concatenate([sizes, places, head, *layers]).astype(np.int64)


def _layer_words(block: Block) -> np.ndarray:
    """The struct Layer."""
    head_norm = 0 if block.mixer.norm is None else block.mixer.norm.weight.data_ptr()
    assert block.before_mixer is not None and block.before_ffn is not None
    norms = [block.before_mixer.weight.data_ptr(), head_norm, block.before_ffn.weight.data_ptr()]
    return np.concatenate([norms, *(getattr(*place).words for place in block.products())])


def _numbers(model: Decoder) -> int:
    """How many a token needs: see run_step."""
    mixer, inner = model.layers[0].layer.mixer, model.layers[0].layer.ffn.inner
    mixed = mixer.heads * mixer.dim
    wide = max(mixed + 2 * mixer.kv_heads * mixer.dim, 2 * inner)
    return 2 * model.config.hidden_size + wide + mixed + inner
