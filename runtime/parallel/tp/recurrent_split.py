"""Tensor parallel recurrent mixers: each rank has some of the heads, or of the channels, with their states.

See `split`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import numpy as np

from ...models.spec.model_spec import ShortConvSpec
from ...models.spec.recurrent_spec import DeltaNetSpec, Mamba2Spec
from ...models.spec.tensor_names import TensorNames
from .tensor_slices import TensorParallelSplit, TensorSlice, numbers

Recurrent = ShortConvSpec | DeltaNetSpec | Mamba2Spec
Pieces = Iterator[tuple[str, TensorSlice]]

KNOWN: dict[
    type, set[str]
] = {  # see `split.SPLIT`; of tiled heads, those of values that belong together are no neighbours
    ShortConvSpec: {"channels", "width", "bias"},
    DeltaNetSpec: {
        "heads",
        "key_heads",
        "dim",
        "value_dim",
        "width",
        "eps",
        "activation",
        "rank",
        "reach",
        "gate",
        "log_rate",
    },
    Mamba2Spec: {
        "heads",
        "dim",
        "size",
        "groups",
        "width",
        "eps",
        "activation",
        "bias",
        "out_bias",
        "conv_bias",
        "least",
        "most",
        "norm_first",
        "scale",
        "scales",
        "log_rate",
    },
}


def recurrent_refusal(part: Recurrent) -> dict[str, int]:
    """What must divide, by its name for people."""
    if isinstance(part, ShortConvSpec):
        return {"channels of a convolution": part.channels}
    if isinstance(part, DeltaNetSpec):
        return {"heads of keys of a recurrent layer": part.key_heads}
    return {"groups of heads of a recurrent layer": part.groups}


def narrow(part: Recurrent, split: TensorParallelSplit) -> Recurrent:
    """The rank's own."""
    if isinstance(part, ShortConvSpec):
        return replace(part, channels=len(split.of(part.channels)))
    heads = len(split.of(part.heads))
    if isinstance(part, DeltaNetSpec):
        return replace(part, heads=heads, key_heads=len(split.of(part.key_heads)))
    return replace(part, heads=heads, groups=len(split.of(part.groups)))


def pieces(part: Recurrent, names: TensorNames, split: TensorParallelSplit) -> Pieces:
    """By the name of a tensor in a layer, what a rank keeps of it."""
    if isinstance(part, ShortConvSpec):
        yield from _of_conv(part, names, split)
    elif isinstance(part, DeltaNetSpec):
        yield from _of_delta(part, names, split)
    else:
        yield from _of_mamba(part, names, split)


def _of_conv(part: ShortConvSpec, names: TensorNames, split: TensorParallelSplit) -> Pieces:
    own, count = np.asarray(split.of(part.channels)), part.channels
    yield from _rows(names.conv.into, 3 * count, _in_sequence([own] * 3, [count] * 3))
    yield from _rows(names.conv.kernel, count, own)
    yield _columns(names.conv.output, count, own)


def _of_delta(part: DeltaNetSpec, names: TensorNames, split: TensorParallelSplit) -> Pieces:
    own, begin, each = names.delta, names.delta.prefix, _of_letters(part, split)
    for group, tensors in (("inputs", own.inputs), ("rates", own.rates)):
        for name, letters in tensors:
            total = sum(each[letter][0] for letter in letters)
            if group in own.by_head:
                rows = numbers(split.of(part.key_heads), total // part.key_heads)
            else:
                rows = _in_sequence([each[letter][1] for letter in letters], [each[letter][0] for letter in letters])
            yield from _rows(begin + name, total, rows)
    for name, letters in zip(own.convolution, ("qkv",) if len(own.convolution) == 1 else "qkv", strict=True):
        counts = [each[letter][0] for letter in letters]
        yield from _rows(begin + name, sum(counts), _in_sequence([each[letter][1] for letter in letters], counts))
    yield from _decays(part, begin, split)
    for name, size in ((own.decay, part.dim), (own.gate, part.value_dim)) if part.rank is not None else ():
        yield from _rows(begin + name, part.heads * size, numbers(split.of(part.heads), size))
    yield _columns(begin + own.output, *each["v"])


def _of_letters(part: DeltaNetSpec, split: TensorParallelSplit) -> dict[str, tuple[int, np.ndarray]]:
    """Of queries, keys, values, gate, b and a: how many rows there are, and those of the rank.

    The few numbers that KDA spreads are whole.
    """
    keys, values = numbers(split.of(part.key_heads), part.dim), numbers(split.of(part.heads), part.value_dim)
    found = {
        "q": (part.key_heads * part.dim, keys),
        "v": (part.heads * part.value_dim, values),
        "b": (part.heads, numbers(split.of(part.heads), 1)),
    }
    found["k"] = found["q"]
    few = None if part.rank is None else (part.rank, np.arange(part.rank))
    return found | {"z": few or found["v"], "a": few or found["b"]}


def _decays(part: DeltaNetSpec, begin: str, split: TensorParallelSplit) -> Pieces:
    heads, few = split.of(part.heads), part.rank is not None
    yield f"{begin}A_log", TensorSlice(2 if few else 0, part.heads, np.asarray(heads))
    size = part.dim if few else 1
    yield f"{begin}dt_bias", TensorSlice(0, part.heads * size, numbers(heads, size))


def _of_mamba(part: Mamba2Spec, names: TensorNames, split: TensorParallelSplit) -> Pieces:
    begin, heads, states = names.mamba, split.of(part.heads), part.groups * part.size
    inner, shared = numbers(heads, part.dim), numbers(split.of(part.groups), part.size)
    seen, counts = [inner, shared, shared], [part.inner, states, states]
    yield from _rows(
        f"{begin}in_proj",
        part.inner + part.channels + part.heads,
        _in_sequence([inner, *seen, np.asarray(heads)], [part.inner, *counts, part.heads]),
    )
    yield from _rows(f"{begin}conv1d", part.channels, _in_sequence(seen, counts))
    for name in ("A_log", "D", "dt_bias"):
        yield begin + name, TensorSlice(0, part.heads, np.asarray(heads))
    yield f"{begin}norm.weight", TensorSlice(0, part.inner, inner)
    yield _columns(f"{begin}out_proj", part.inner, inner)


def _rows(name: str, count: int, kept: np.ndarray) -> Pieces:
    yield f"{name}.weight", TensorSlice(0, count, kept)
    yield f"{name}.bias", TensorSlice(0, count, kept)


def _columns(name: str, count: int, kept: np.ndarray) -> tuple[str, TensorSlice]:
    return f"{name}.weight", TensorSlice(1, count, kept, inputs=True)


def _in_sequence(kept: list[np.ndarray], counts: list[int]) -> np.ndarray:
    """Of parts that follow each other, so many rows each."""
    return np.concatenate([rows + start for rows, start in zip(kept, [0, *accumulate(counts)], strict=False)])
