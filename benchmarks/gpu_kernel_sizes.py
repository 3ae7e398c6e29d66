"""At which sizes the kernels are measured: what steps of an engine look like, and the corners of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """decodes: (sequences, context).  extends: (sequences, cached, new).  shared: (sequences, prefix, own)."""

    cold: int = 240 * 2**20  # bytes that the weights of a measurement have together: several times the L2 cache
    load: float = 0.4  # seconds of the same work before a product bound by arithmetic is timed
    roof_load: float = 1.0
    roof_rows: tuple[int, ...] = (256, 1024, 4096, 8192)
    chain: int = 8  # layers
    chain_contexts: tuple[int, ...] = (400, 2000)
    decodes: tuple[tuple[int, int], ...] = (
        (64, 2048),
        (1, 384),
        (1, 4096),
        (1, 8192),
        (2, 2048),
        (4, 3096),
        (256, 576),
    )
    extends: tuple[tuple[int, int, int], ...] = (
        (4, 0, 2048),
        (16, 0, 512),
        (2, 1000, 512),
        (64, 3000, 64),
        (1, 8000, 8),
        (4, 4000, 8),
        (1, 8000, 64),
        (64, 1000, 8),
    )
    shared: tuple[int, int, int] = (256, 3000, 100)
    slots: int = 300_000
    rows: tuple[int, ...] = (1, 64, 128, 256, 4096)
    fp8_rows: tuple[int, ...] = (2, 8, 16, 32, 64, 128, 256, 4096)
    gated_rows: tuple[int, ...] = (256, 4096)
    few_bits_rows: tuple[int, ...] = (1, 16, 64, 128, 256, 512, 1024, 4096)
    layer_rows: tuple[int, ...] = (1, 64, 256, 1024, 4096, 16384)
    sampled: tuple[int, ...] = (1, 8, 64, 256)
    mixed: tuple[int, ...] = (1, 8, 64, 256)
    context: int = 600
    steps: int = 24
    loaded: int = 32  # layers of the checkpoint


QUICK = Sizes(
    load=0.15,
    roof_load=0.6,
    roof_rows=(4096,),
    decodes=((64, 2048), (1, 384), (256, 576)),
    fp8_rows=(64, 256, 4096),
    extends=((4, 0, 2048), (64, 3000, 64), (1, 8000, 8)),
    rows=(64, 256, 4096),
    gated_rows=(4096,),
    layer_rows=(1, 256, 4096),
    sampled=(1, 256),
    mixed=(1, 64),
    steps=8,
    loaded=8,
)
