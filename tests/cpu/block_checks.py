"""Random steps of attention to chosen blocks, and attention to these computed one query and one head at a time."""

from __future__ import annotations

from typing import Any

import torch
from attention_cases import Work
from attention_oracle import World, attended

from sgl.runtime.attention import AttentionBackend, AttentionLayout, LayerAttention
from sgl.runtime.attention.block_sparse_attention import NONE, of_blocks

BLOCK, MOST = 4, 3
RAGGED: Work = [(40, 1), (0, 1), (8, 1), (9, 1), (17, 9), (0, 20)]


def dense_mask(blocks: torch.Tensor, positions: torch.Tensor, size: int, window: int) -> list[list[list[int]]]:
    """Of each query and KV head the positions that it sees, by asking each position."""
    found = []
    for position, heads in zip(positions.tolist(), blocks.tolist(), strict=True):
        found.append([[p for p in range(position + 1) if p // size in own or position - p < window] for own in heads])
    return found


class Blocks:
    """A step over pages whose queries choose blocks at random, their own among them, and see a window besides."""

    def __init__(
        self,
        work: Work,
        layer: LayerAttention,
        dtype: torch.dtype = torch.float32,
        window: int = 0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.world, self.layer, self.window = (
            World(AttentionLayout.of([layer]), work, dtype, seed=seed, **options),
            layer,
            window,
        )
        self.q = self.world.normal(sum(new for _, new in work), layer.query_heads, layer.key_dim)
        self.kv = [self.world.normal(len(self.q), layer.kv_heads, layer.key_dim) for _ in "kv"]
        positions, random = self.world.batch.positions.cpu(), self.world.random
        drawn = torch.rand(len(self.q), layer.kv_heads, int(positions.max()) // BLOCK + 1, generator=random).argsort(
            -1
        )[..., :MOST]
        own = (positions // BLOCK)[:, None, None].expand(-1, layer.kv_heads, 1)
        drawn = torch.where((drawn == own) | (torch.rand(drawn.shape, generator=random) < 0.2), NONE, drawn)
        self.blocks = torch.cat((drawn, own), 2).to(self.world.device)

    def check(self, backend: AttentionBackend, sinks: bool = False, tolerance: float = 1e-4) -> None:
        world, batch = self.world, self.world.batch
        backend.plan(batch)
        backend.store(*self.kv, 0, batch)
        given = world.normal(self.layer.query_heads).float() * 3 if sinks else None
        chosen = of_blocks(self.blocks, BLOCK, self.window, batch)
        found = backend.attend_topk(self.q, chosen, 0, batch, given)
        assert found.is_contiguous() and found.shape == self.q.shape and found.dtype == self.q.dtype
        torch.testing.assert_close(found.float().cpu(), self.expected(given), atol=tolerance, rtol=tolerance)
        part = torch.arange(len(self.q))[1::2] if len(self.q) > 2 else slice(None)
        some = of_blocks(self.blocks[part], BLOCK, self.window, batch, part)
        torch.testing.assert_close(
            backend.attend_topk(self.q[part], some, 0, batch, given), found[part], atol=tolerance, rtol=tolerance
        )

    def expected(self, sinks: torch.Tensor | None) -> torch.Tensor:
        layer, pool, out = self.layer, self.world.pool, torch.zeros(self.q.shape)
        keys, values = (
            (stored[0].cpu().float().double() * scale).numpy()
            for stored, scale in zip((pool.k, pool.v), pool.scales[0], strict=True)
        )
        seen = dense_mask(self.blocks.cpu(), self.world.batch.positions.cpu(), BLOCK, self.window)
        sequences = [
            slots for slots, (_, new) in zip(self.world.slots, self.world.work, strict=True) for _ in range(new)
        ]
        for token, slots in enumerate(sequences):
            for head in range(layer.query_heads):
                own = head // (layer.query_heads // layer.kv_heads)
                some, sink = slots[seen[token][own]], None if sinks is None else float(sinks[head])
                query = self.q[token, head].double().cpu().numpy()
                out[token, head] = torch.from_numpy(
                    attended(query, keys[some, own], values[some, own], layer, head, sink)
                )
        return out
