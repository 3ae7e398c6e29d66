"""The attention requirements of a model's layers, and how they are grouped for the backends and for the KV pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ..cache.kv_layer_group import KVLayerGroup
from ..errors import ConfigError
from ..layers.number_formats import HasItemSize

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..cache.kv_pool import KVPool
    from ..cache.multi_width_kv_pools import Pool
    from ..layers.float8_reference import KVScaleFactors


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The attention requirements of one layer.

    scale: scores are q k * scale.
    window: latest tokens that a query sees, itself included.  chunk: a query sees keys of the same chunk of positions
        only, those with the same position // chunk.
    softcap: scores become softcap * tanh(score / softcap), before what is not seen is masked.
    alibi: slope of each query head, times the distance of query and key subtracted from the score, after the softcap.
    source: index of the layer whose keys and values this one reads; it stores none itself.
    latent: values are the first `value_dim` numbers of the keys, which alone are stored; there is one KV head.
    index_dim: numbers of a token's index key, stored additionally, by which the layer chooses the tokens to attend to.
    chosen: how many tokens a query attends to at most, which layers choose; None: all that it sees.
    """

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    alibi: tuple[float, ...] | None = None
    source: int | None = None
    latent: bool = False
    index_dim: int = 0
    chosen: int | None = None

    @property
    def reach(self) -> int | None:
        """Latest tokens that a query sees at most, itself included; None: all."""
        limits = [limit for limit in (self.window, self.chunk) if limit is not None]
        return min(limits, default=None)

    @property
    def stored(self) -> tuple[int, int, int, bool, int]:
        """The key of layers that may share a pool."""
        return self.kv_heads, self.key_dim, self.value_dim, self.latent, self.index_dim


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Layers that are equal in all but window and chunk: what one backend serves.

    windows, chunks: one entry per layer, see `LayerAttention`; chunks empty: none anywhere.
    value_dim: 0 for head_dim, the width of queries and keys.  scale: 0 for head_dim ** -0.5.
    caches: which layer of the pool each layer reads; empty: its own.
    latent, chosen: see `LayerAttention`.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    value_dim: int = 0
    scale: float = 0.0
    softcap: float | None = None
    alibi: tuple[float, ...] | None = None
    chunks: tuple[int | None, ...] = ()
    caches: tuple[int, ...] = ()
    latent: bool = False
    chosen: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_dim", self.value_dim or self.head_dim)
        object.__setattr__(self, "scale", self.scale or self.head_dim**-0.5)
        object.__setattr__(self, "chunks", self.chunks or (None,) * self.layers)
        object.__setattr__(self, "caches", self.caches or tuple(range(self.layers)))

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def reaches(self) -> tuple[tuple[int | None, int | None], ...]:
        """Window and chunk of each layer: what decides which keys its queries see."""
        return tuple(zip(self.windows, self.chunks, strict=True))


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """The attention of all layers of a model.

    layers: None for one that does not attend and stores no keys.
    groups: each for one backend.  places: for each layer that attends, its group and its index in it.
    parts: each one pool.  homes: the part that each group reads; several may read the same. If no layer attends there
    are no groups, and one part whose slots count tokens and hold nothing.
    windowed: layers in separate parts, over slots of windows, which make separate groups; see `apart`.
    """

    layers: tuple[LayerAttention | None, ...]
    groups: tuple[AttentionShape, ...]
    places: Mapping[int, tuple[int, int]]
    parts: tuple[KVLayerGroup, ...]
    homes: tuple[int, ...]
    windowed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, layers: Sequence[LayerAttention | None], windowed: frozenset[int] = frozenset()) -> AttentionLayout:
        """Raises ConfigError for layers that cannot be."""
        attending = {index: layer for index, layer in enumerate(layers) if layer is not None}
        for index, layer in attending.items():
            _check(index, layer, attending)
        caches, parts = _stored(attending, windowed)
        kinds = {
            index: (replace(layer, window=None, chunk=None, source=None), index in windowed)
            for index, layer in attending.items()
        }
        members = [[i for i, other in kinds.items() if other == kind] for kind in dict.fromkeys(kinds.values())]
        whose = {layer: (group, index) for group, found in enumerate(members) for index, layer in enumerate(found)}
        return cls(
            layers=tuple(layers),
            groups=tuple(_shape([(attending[i], caches[i][1]) for i in found]) for found in members),
            places={index: whose[index] for index in attending},
            parts=parts,
            homes=tuple(caches[found[0]][0] for found in members),
            windowed=windowed,
        )

    def apart(self, context: int) -> AttentionLayout:
        """The layout with separate pools for the layers that see less than `context` tokens; itself if there are none.

        Layers with index keys are excluded. None are separate if a layer with a window reads what one without it
        stored, or the other way round.
        """
        near = frozenset(
            index
            for index, layer in enumerate(self.layers)
            if layer is not None and layer.reach is not None and layer.reach < context and not layer.index_dim
        )
        mixed = any(
            layer and layer.source is not None and (layer.source in near) != (index in near)
            for index, layer in enumerate(self.layers)
        )
        return self if mixed or not near else AttentionLayout.of(self.layers, near)

    @property
    def reach(self) -> int:
        """Latest tokens that a query sees in windowed layers at most."""
        return max((self.layer(index).reach or 0 for index in self.windowed), default=0)

    def is_windowed(self, group: int) -> bool:
        return self.parts[self.homes[group]].windowed

    def layer(self, index: int) -> LayerAttention:
        """Of a layer that attends."""
        found = self.layers[index]
        if found is None:
            raise RuntimeError(f"layer {index} does not attend")
        return found

    @property
    def attending(self) -> list[LayerAttention]:
        return [layer for layer in self.layers if layer is not None]

    @property
    def even(self) -> bool:
        """Queries and outputs have the same width in all layers."""
        return len({(layer.query_heads, layer.key_dim, layer.value_dim) for layer in self.attending}) == 1

    def bytes_per_slot(self, dtype: HasItemSize, windowed: bool | None = None) -> int:
        """Bytes that one token's keys and values take in all layers together;
        windowed: in these, or in the others, only.
        """
        return sum(part.bytes_per_slot(dtype) for part in self.parts if windowed in (None, part.windowed))

    def pool(self, slots: int, dtype: torch.dtype, device: torch.device | str = "cpu", window_slots: int = 0) -> Pool:
        from ..cache.multi_width_kv_pools import make_pool

        return make_pool(self.parts, slots, dtype, device, window_slots)

    def stored(self, pool: Pool, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer in a pool of this layout: [slots, kv_heads, width]."""
        part, cache = self._cache(pool, layer)
        return part.k[cache], part.v[cache]

    def scales(self, pool: Pool, layer: int) -> KVScaleFactors:
        """The scales that they were divided by."""
        part, cache = self._cache(pool, layer)
        return part.scales[cache]

    def scale(self, pool: Pool, scales: Sequence[KVScaleFactors]) -> None:
        """Divide what is stored from now on by these, one entry for each layer; those of layers that store nothing are
        not asked.

        Where values are numbers of the keys the keys' scale is that of both.
        """
        from ..layers.float8_reference import KVScaleFactors

        for index, layer in enumerate(self.layers):
            if layer is not None and layer.source is None:
                part, cache = self._cache(pool, index)
                part.scales[cache] = KVScaleFactors(scales[index].k, scales[index].k) if layer.latent else scales[index]

    def _cache(self, pool: Pool, layer: int) -> tuple[KVPool, int]:
        """The part of the pool that a layer reads, and which of its layers."""
        group, index = self.places[layer]
        return pool.parts[self.homes[group]], self.groups[group].caches[index]


def _check(index: int, layer: LayerAttention, layers: Mapping[int, LayerAttention]) -> None:
    if layer.query_heads % layer.kv_heads:
        raise ConfigError(
            f"layer {index}: {layer.query_heads} query heads cannot share {layer.kv_heads} KV heads evenly"
        )
    if layer.latent and (layer.kv_heads != 1 or layer.value_dim > layer.key_dim):
        raise ConfigError(
            f"layer {index}: {layer.value_dim} values of {layer.kv_heads} KV heads cannot be numbers of keys of "
            f"width {layer.key_dim}"
        )
    if layer.alibi is not None and len(layer.alibi) != layer.query_heads:
        raise ConfigError(f"layer {index}: {len(layer.alibi)} ALiBi slopes for {layer.query_heads} query heads")
    if layer.source is None:
        return
    if layer.source not in layers or layer.source >= index or layers[layer.source].source is not None:
        raise ConfigError(f"layer {index} reads layer {layer.source}, which must come before it and store its own keys")
    if layers[layer.source].stored != layer.stored:
        raise ConfigError(
            f"layer {index} reads layer {layer.source}, but KV heads, key and value width differ: "
            f"{layer.stored}, {layers[layer.source].stored}"
        )


def _stored(
    layers: Mapping[int, LayerAttention], windowed: frozenset[int]
) -> tuple[dict[int, tuple[int, int]], tuple[KVLayerGroup, ...]]:
    """For each layer its part and its layer in that part; and the parts, the windowed ones last."""
    kept: dict[KVLayerGroup, list[int]] = {} if layers.keys() - windowed else {KVLayerGroup(0, 1, 1, 1): []}
    for index in sorted(layers, key=lambda index: index in windowed):
        if layers[index].source is None:
            kept.setdefault(KVLayerGroup(0, *layers[index].stored, windowed=index in windowed), []).append(index)
    caches = {index: (home, place) for home, found in enumerate(kept.values()) for place, index in enumerate(found)}
    caches |= {index: caches[layer.source] for index, layer in layers.items() if layer.source is not None}
    return caches, tuple(part._replace(layers=len(found)) for part, found in kept.items())


def _shape(members: Sequence[tuple[LayerAttention, int]]) -> AttentionShape:
    """Of equal layers, each with the layer of the pool that it reads."""
    first = members[0][0]
    return AttentionShape(
        first.query_heads,
        first.kv_heads,
        first.key_dim,
        tuple(layer.window for layer, _ in members),
        first.value_dim,
        first.scale,
        first.softcap,
        first.alibi,
        tuple(layer.chunk for layer, _ in members),
        tuple(cache for _, cache in members),
        first.latent,
        first.chosen,
    )


def listed(numbers: Sequence[int]) -> str:
    """Rising numbers, with neighbours joined: 0-2, 5."""
    starts = [*numbers[:1], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), *numbers[-1:]]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
