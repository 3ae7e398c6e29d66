"""The indexer that chooses the tokens that queries attend to (DSA, of DeepSeek V3.2): the projections.

See `attention/topk_attention.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...attention.topk_attention import TopKSelection
from ...layers.linear_layers import Linear
from ...layers.rotary_embedding import rotate
from ..spec.latent_attention_spec import IndexerSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, exact, matrix, norm_for, norm_places, weight_of
from .reference_mixer import ReferenceStep
from .reference_module import ReferenceModule


class ReferenceIndexer(ReferenceModule):
    """`queries` projects the queries' latent to all heads' queries, `keys` a token to its key, `shares` to head
    weights.
    """

    def __init__(
        self, part: IndexerSpec, names: TensorNames, hidden: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """rank: of the queries' latent."""
        self.part, self._begin = part, names.latent.index
        self.queries = matrix(part.heads * part.dim, rank, False, False, dtype, device)
        self.keys = matrix(part.dim, hidden, False, False, dtype, device)
        self.shares = matrix(part.heads, hidden, False, False, dtype, device)
        norm = norm_for(part.norm, part.dim, device)
        assert norm is not None
        self.norm = norm

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        begin = prefix + self._begin
        yield from weight_of(f"{begin}wq_b", self.queries)
        yield from weight_of(f"{begin}wk", self.keys)
        yield from exact(f"{begin}weights_proj", self.shares)
        yield from norm_places(f"{begin}k_norm", self.part.norm, self.norm)

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        if self._order is not None:
            yield self.queries, (np.arange(self.part.heads)[:, None] * self.part.dim + self._order).ravel()
            yield self.keys, self._order

    def finish_loading(self) -> None:
        """The norm's weights belong to the keys, which are reordered for the rotation."""
        if self._order is not None:
            for tensor in (self.norm.weight, *([] if self.norm.bias is None else [self.norm.bias])):
                tensor.copy_(tensor[torch.from_numpy(self._order).to(tensor.device)])
        super().finish_loading()

    @property
    def _order(self) -> np.ndarray | None:
        order = self.part.rope.order
        return None if order is None else np.array(order)

    def choose(self, x: Tensor, latent: Tensor, step: ReferenceStep, layer: int) -> TopKSelection | None:
        """Stores the tokens' keys, and returns the chosen tokens.

        x: [T, hidden].  latent: of the queries, normed, [T, rank].  None: all tokens are attended to.
        """
        batch, angles = step.batch, step.angles[self.part.rope]
        step.attention.store_index(rotate(self.norm(self.keys(x))[:, None], angles)[:, 0], layer, batch)
        if max(batch.context_lens) <= self.part.most:
            return None
        queries = rotate(self.queries(latent).unflatten(1, (self.part.heads, -1)), angles)
        shares = self.shares(x).float() * self.part.heads**-0.5
        return step.attention.choose(queries, shares, layer, batch)
