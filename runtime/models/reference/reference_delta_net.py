"""The reference for gated delta nets and KDA, in torch: project, convolve, scan, norm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ...layers.linear_layers import Linear
from ...layers.recurrent import LinearAttention, RaggedSequences
from ..spec.recurrent_spec import DeltaNetSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, exact, matrix, weight_of
from .reference_mixer import ProjectedMixer, ReferenceStep
from .reference_recurrence import ReferenceConvolution, carried, gated, rates, scanned, sigmoid, stored_rate

UNIT_EPS = 1e-6  # added to the norm of queries and keys


class ReferenceDeltaNet(ProjectedMixer):
    """`input` projects queries, keys, values and gate, `rates` beta and decay; `output` projects all heads' gated
    outputs.

    spread, gate: from a few numbers to decay and gate of all channels, in KDA.  rate: float32 [heads], -e^A_log.
    """

    def __init__(
        self, part: DeltaNetSpec, names: TensorNames, index: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self.index, self._names = part, index, names.delta
        keys, values, few = part.key_heads * part.dim, part.heads * part.value_dim, part.rank
        self._rows = {"q": keys, "k": keys, "v": values, "z": few or values, "b": part.heads, "a": few or part.heads}
        self.input = matrix(sum(self._rows[name] for name in "qkvz"), hidden, False, False, dtype, device)
        self.rates = matrix(sum(self._rows[name] for name in "ba"), hidden, False, False, dtype, device)
        self.spread = None if few is None else matrix(part.heads * part.dim, few, False, False, dtype, device)
        self.gate = None if few is None else matrix(values, few, False, False, dtype, device)
        self.output = matrix(hidden, values, False, False, dtype, device)
        self.convolution = ReferenceConvolution(part.channels, part.width, False, part.activation, device)
        self.rate = torch.zeros(part.heads, dtype=torch.float32, device=device)
        self.bias = torch.zeros(part.heads, 1 if few is None else part.dim, dtype=torch.float32, device=device)
        self.norm = torch.ones(part.value_dim, dtype=torch.float32, device=device)

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        names, begin = self._names, prefix + self._names.prefix
        yield from self._merged(begin, names.inputs, self.input)
        yield from (place._replace(layer=None, start=0) for place in self._merged(begin, names.rates, self.rates))
        yield from self._convolutions(begin)
        yield WeightTarget(f"{begin}A_log", self.rate if self.part.rank is None else self.rate.view(1, 1, -1, 1))
        yield WeightTarget(f"{begin}dt_bias", self.bias.view(-1))
        yield WeightTarget(f"{begin}{names.norm}.weight", self.norm)
        if self.spread is not None and self.gate is not None:
            yield from exact(begin + names.decay, self.spread)
            yield from weight_of(begin + names.gate, self.gate)
        yield from weight_of(begin + names.output, self.output)

    def _merged(self, begin: str, tensors: tuple[tuple[str, str], ...], product: Linear) -> Iterator[WeightTarget]:
        """Tensors of the file that are the rows of a product, in order."""
        start = 0
        for name, letters in tensors:
            rows = sum(self._rows[letter] for letter in letters)
            yield WeightTarget(f"{begin}{name}.weight", product.weight[start : start + rows], product, start)
            start += rows

    def _convolutions(self, begin: str) -> Iterator[WeightTarget]:
        """One tensor, or one each of queries, keys and values."""
        names = self._names.convolution
        whole = self.convolution.loaded
        parts = [whole] if len(names) == 1 else whole.split_with_sizes([self._rows[letter] for letter in "qkv"])
        yield from (WeightTarget(f"{begin}{name}.weight", target) for name, target in zip(names, parts, strict=True))

    def finish_loading(self) -> None:
        super().finish_loading()
        self.rate = stored_rate(self.rate, self.part.log_rate)

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        """Queries, keys, values, gate; beta, decay."""
        places = {"inputs": (self.input, "qkvz"), "rates": (self.rates, "ba")}
        yield from ((places[name][0], self._order(places[name][1])) for name in self._names.by_head)

    def _order(self, letters: str) -> np.ndarray:
        """int64: rows of a tensor in which all that belongs to one key head is adjacent."""
        sizes = [self._rows[letter] // self.part.key_heads for letter in letters]
        heads = np.arange(sum(sizes) * self.part.key_heads).reshape(self.part.key_heads, -1)
        return np.concatenate([part.ravel() for part in np.split(heads, list(accumulate(sizes))[:-1], 1)])

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the gated outputs of all heads, [T, heads * value_dim]; states are kept for later
        tokens.
        """
        part, states, ragged = self.part, carried(step), RaggedSequences.of(step.batch.query_lens, x.device)
        windows, memory = states.of(self.index)
        mixed, z = self.input(x).split_with_sizes((part.channels, self._rows["z"]), 1)
        convolved = self.convolution(mixed, windows, states, ragged)
        out = scanned(self._scan_inputs(convolved, *self._rates(x)), memory, states, ragged)
        return gated(out, z if self.gate is None else self.gate(z), self.norm, part.eps, part.gate)

    def _rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """beta [T, heads, 1] and decay [T, heads, 1 or dim], float32."""
        b, a = self.rates(x).split_with_sizes((self.part.heads, self._rows["a"]), 1)
        _, decay = rates(a if self.spread is None else self.spread(a), self.bias.view(-1), self.rate)
        return sigmoid(b, self.part.reach)[..., None], decay.view(len(x), *self.bias.shape)

    def _scan_inputs(self, mixed: Tensor, beta: Tensor, decay: Tensor) -> LinearAttention:
        """mixed: float32 [T, channels], queries, keys and values of all heads."""
        part = self.part
        keys, values = part.key_heads * part.dim, part.heads * part.value_dim
        q, k, v = mixed.split_with_sizes((keys, keys, values), 1)
        q, k = (each.unflatten(1, (part.key_heads, part.dim)) for each in (q, k))
        if part.tiled:
            q, k = (each.repeat(1, part.heads // part.key_heads, 1) for each in (q, k))
        return LinearAttention(
            q, k, v.unflatten(1, (part.heads, part.value_dim)), decay, beta, UNIT_EPS, part.dim**-0.5
        )
