"""Random steps of layers that choose what they attend to, and what they are to
choose and to mix, one query at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from attention_cases import Work
from attention_oracle import World, attended
from latent_checks import layer

from sgl.runtime.attention import AttentionBackend, AttentionLayout
from sgl.runtime.attention.topk_attention import TopKSelection

MOST = 9
RAGGED: Work = [(40, 1), (0, 1), (8, 1), (150, 1), (9, 1), (17, 9), (3, 12), (0, 20)]
FEW: Work = [(70, 1), (0, 1), (9, 1), (17, 4), (0, 7)]
DECODES: Work = [(40, 1), (0, 1), (150, 1), (9, 1)]


class Choices:
    """A step over pages, whose tokens have keys to be chosen by.

    whole: these, the queries and the shares are small whole numbers, so that scores are exact, and many of them equal.
    by: heads and their width, whose root is to be a whole number.
    """

    def __init__(
        self,
        work: Work,
        dtype: torch.dtype = torch.float32,
        most: int = MOST,
        heads: int = 5,
        whole: bool = True,
        seed: int = 0,
        by: tuple[int, int] = (3, 4),
        **options: Any,
    ) -> None:
        self.whole, self.most, self.layer, self.scale = (
            whole,
            most,
            replace(layer(heads, 32, 16), index_dim=by[1], chosen=most),
            by[1] ** -0.5,
        )
        self.world = World(AttentionLayout.of([self.layer]), work, dtype, seed=seed, **options)
        self.queries, self.shares = self.numbers(self.tokens, *by), self.numbers(self.tokens, by[0]).float()
        self.index = [self.numbers(sum(lengths), by[1]).to(self.world.pool.index.dtype) for lengths in work]
        for slots, keys, (cached, _) in zip(self.world.slots, self.index, work, strict=True):
            self.world.pool.index[0, slots[:cached]] = keys[:cached]
        self.q, self.rows = self.world.normal(self.tokens, heads, 48), self.world.normal(self.tokens, 1, 48)

    @property
    def tokens(self) -> int:
        return sum(new for _, new in self.world.work)

    def numbers(self, *size: int) -> torch.Tensor:
        if not self.whole:
            return self.world.normal(*size)
        return torch.randint(-2, 3, size, generator=self.world.random).to(self.world.device, self.world.dtype)

    def choose(self, backend: AttentionBackend) -> TopKSelection:
        """Once the step's own keys and rows are stored."""
        batch, new = (
            self.world.batch,
            [keys[cached:] for keys, (cached, _) in zip(self.index, self.world.work, strict=True)],
        )
        backend.plan(batch)
        backend.store(self.rows, self.rows[..., :32], 0, batch)
        backend.store_index(torch.cat(new).to(self.world.dtype), 0, batch)
        return backend.choose(self.queries, self.shares, 0, batch)

    def expected(self) -> list[np.ndarray]:
        """Of each query the positions that it attends to."""
        found: list[np.ndarray] = []
        queries, shares = (each.double().cpu().numpy() for each in (self.queries, self.shares))
        for keys, (cached, new) in zip(self.index, self.world.work, strict=True):
            for seen in range(cached + 1, cached + new + 1):
                token = len(found)
                products = np.maximum(keys[:seen].double().cpu().numpy() @ queries[token].T, 0) * self.scale
                found.append(np.sort(np.argsort(-(products @ shares[token]), kind="stable")[: self.most]))
        return found

    def check(self, backend: AttentionBackend, tolerance: float = 1e-4) -> None:
        """Both the choice, where it is exact, and what is mixed of it."""
        chosen = self.choose(backend)
        if self.whole:
            self.check_choice(chosen)
        found = backend.attend_topk(self.q, chosen, 0, self.world.batch)
        expected = self.mixed(chosen)
        assert found.is_contiguous() and found.shape == expected.shape and found.dtype == self.q.dtype
        torch.testing.assert_close(found.float().cpu(), expected, atol=tolerance, rtol=tolerance)
        assert not self.world.pool.index[:, 0].any() and not self.world.pool.k[:, 0].float().any()

    def check_choice(self, chosen: TopKSelection) -> None:
        for token, (places, slots) in enumerate(zip(self.expected(), self.slots_of_tokens(), strict=True)):
            count = int(chosen.counts[token])
            assert chosen.slots[token, 0, :count].tolist() == slots[places].tolist(), token

    def slots_of_tokens(self) -> list[np.ndarray]:
        """Of each token those of its sequence."""
        return [slots for slots, (_, new) in zip(self.world.slots, self.world.work, strict=True) for _ in range(new)]

    def mixed(self, chosen: TopKSelection) -> torch.Tensor:
        out = torch.zeros(self.tokens, self.layer.query_heads, 32)
        stored, scale = self.world.pool.k[0, :, 0].cpu().float().double(), self.world.pool.scales[0].k
        for token, count in enumerate(chosen.counts[:, 0].tolist()):
            rows = (stored[chosen.slots[token, 0, :count].long().cpu()] * scale).numpy()
            for head in range(self.layer.query_heads):
                query = self.q[token, head].double().cpu().numpy()
                out[token, head] = torch.from_numpy(attended(query, rows, rows[:, :32], self.layer, head, None))
        return out
