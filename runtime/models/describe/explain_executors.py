"""The executor of each layer of a model, and why no faster one: a table, and a summary of what deserves a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...attention.attention_layout import listed
from ..expected_executors import LayerExecutorChoice
from ..spec.model_spec import ModelSpec
from .describe_layers import describe_attention, describe_layer

if TYPE_CHECKING:
    from ...attention.backend_protocols import AttentionBackend
    from ..transformers_backend import AnyDecoder


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are equal and run the same way.

    layers: their numbers, "0-3, 5-8".  parts: of each layer.  executor: "fused", "compiled", "torch", "transformers".
    attention: the backend's name, "none" if the layer does not attend.  why, attention_why: why no faster one is used;
        None: there is none.
    """

    layers: str
    count: int
    parts: str
    executor: str
    why: str | None
    attention: str
    attention_why: str | None


def layers_of(model: AnyDecoder, attention: AttentionBackend) -> tuple[LayerGroup, ...]:
    """Of a sealed model with its attention backend."""
    return planned_layers(model, model.executors(), attention)


def planned_layers(
    model: AnyDecoder, executors: Sequence[tuple[str, str | None]], attention: AttentionBackend
) -> tuple[LayerGroup, ...]:
    """Of a model whose layers are to be run by `executors`."""
    layers = model.config.attention.layers
    attends = [None if layer is None else attention.reasons(index) for index, layer in enumerate(layers)]
    blocks = getattr(model, "layers", None)
    parts = (
        [describe_attention(layer) for layer in layers if layer is not None]
        if blocks is None
        else [describe_layer(block.layer) for block in blocks]
    )
    return _grouped(parts, executors, attends)


def described_layers(
    model: ModelSpec, executors: Sequence[tuple[str, str | None]], attends: Sequence[tuple[str, str | None] | None]
) -> tuple[LayerGroup, ...]:
    """The same of a model that is only described. attends: by layer, as `AttentionBackend.reasons` says it; None for
    one that does not attend.
    """
    return _grouped([describe_layer(layer) for layer in model.layers], executors, attends)


def _grouped(
    parts: Sequence[str], executors: Sequence[tuple[str, str | None]], attends: Sequence[tuple[str, str | None] | None]
) -> tuple[LayerGroup, ...]:
    by = [LayerExecutorChoice("none", None) if each is None else LayerExecutorChoice(*each) for each in attends]
    runs = [_with_attention(LayerExecutorChoice(*ran), name) for ran, (name, _) in zip(executors, by, strict=True)]
    return table(parts, runs, by)


def _with_attention(ran: LayerExecutorChoice, attention: str) -> LayerExecutorChoice:
    """Compiled layers attend by the compiled kernels, or not at all."""
    return (
        LayerExecutorChoice("torch", f"its attention uses {attention}")
        if ran.by == "compiled" and attention not in ("cpu", "none")
        else ran
    )


def table(
    parts: Sequence[str], runs: Sequence[LayerExecutorChoice], attends: Sequence[LayerExecutorChoice]
) -> tuple[LayerGroup, ...]:
    """For each layer its parts, its executor and its attention."""
    found: dict[tuple[str, LayerExecutorChoice, LayerExecutorChoice], list[int]] = {}
    for index, layer in enumerate(zip(parts, runs, attends, strict=True)):
        found.setdefault(layer, []).append(index)
    return tuple(
        LayerGroup(listed(numbers), len(numbers), parts, runs.by, runs.why, attends.by, attends.why)
        for (parts, runs, attends), numbers in found.items()
    )


def slower(rows: Iterable[LayerGroup]) -> list[str]:
    """The layers that do not take the fastest path, with counts: "30 of 36 layers
    use the torch executor: ALiBi positions".
    """
    rows = list(rows)
    total, runs, attends = sum(row.count for row in rows), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in rows:
        if row.why is not None:
            runs[row.executor, row.why] += row.count
        if row.attention_why is not None:
            attends[row.attention, row.attention_why] += row.count
    return [
        *(f"{count} of {total} layers use the {by} executor: {why}" for (by, why), count in runs.items()),
        *(f"{count} of {total} layers use {by} attention: {why}" for (by, why), count in attends.items()),
    ]
