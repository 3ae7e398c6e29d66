"""The decoder's step on a GPU: Triton kernels between the matrix products, each sum fused into the norm that follows.

The reference runs the layers that the kernels do not support (gpu_support.py), in the same step. A batch of one with
plain or float8 weights takes the kernels of `gemv`, which are the matrix products as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ...attention.backend_protocols import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...kernels.embed_tokens import embed, enter_pages
from ...kernels.gemv import gemv
from ...kernels.launch.compile_ahead import is_compiling
from ...kernels.logit_softcap import adjust
from ...kernels.quantized.quantized_gemm import NormedInput
from ...kernels.residual_norm import NormWeights
from ...layers.rope_parameters import RopeParameters
from ...step.step_batch import StepBatch
from ..decoder_parts import DecoderParts
from ..reference.reference_attention import ReferenceAttention
from ..reference.reference_embedding import known_ids
from ..reference.reference_latent_attention import ReferenceLatentAttention
from ..reference.reference_mixer import ReferenceStep, step_states
from ..spec.model_spec import ropes_of
from .gemv_layers import AnyFused, FullyFusedLayer, GpuLayer, gemv_layer_for, multiply
from .gemv_layers import can_run_gemv as has_kernel
from .gpu_latent_attention import FusedLatentLayer
from .gpu_layer_executor import GpuStep, LayerExecutor
from .gpu_layers import FusedLayer, FusedRecurrentLayer, ReferenceLayer, ReferenceMixerLayer
from .gpu_residual_norm import AnyJoin, Pending, between, summed_locally, weights_of
from .gpu_support import gpu_refusal, gpu_refusal_around_mixer
from .repeated_layers import compiled_layers
from .small_batch_layers import MOST_ROWS, SmallBatchLayer, of_head, small_batch_layers
from .small_batch_support import is_quantized, unfused_reasons


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """How a sealed model runs on a GPU.

    alone: the layers for a batch of one.  few: for a small batch, if weights are quantized.
    small_batch_refusal: why these are None all the same.  exit: from the last layer to the head.  last_norm: if it is a
        plain RMS norm, which the head can fuse into its product.
    positions: of the longest sequence that the tables cover; None: no limit.
    reference_ropes: rotations of mixers that run in torch.  compiled: see `compiled_layers`.
    """

    layers: tuple[GpuLayer, ...]
    alone: tuple[LayerExecutor, ...]
    few: tuple[SmallBatchLayer, ...] | None
    small_batch_refusal: str | None
    exit: AnyJoin
    last_norm: NormWeights | None
    positions: int | None
    reference_ropes: tuple[RopeParameters, ...]
    compiled: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether the kernels support every layer."""
        return all(isinstance(layer, AnyFused) for layer in self.layers)

    @property
    def folds(self) -> bool:
        """Whether the layers for a batch of one leave nothing to be added, and their norms to the products."""
        return all(isinstance(layer, FullyFusedLayer) for layer in self.alone)


class PlannedDecoder(DecoderParts, Protocol):
    """A sealed decoder on a GPU."""

    @property
    def execution_plan(self) -> ExecutionPlan: ...


def execution_plan_of(model: DecoderParts) -> ExecutionPlan:
    layers: list[GpuLayer] = []
    for block in model.layers:
        previous = layers[-1].block if layers and not isinstance(layers[-1], ReferenceLayer) else None
        refusal = gpu_refusal(block, model.dtype)
        if refusal is None and isinstance(block.mixer, ReferenceLatentAttention):
            layers.append(FusedLatentLayer.of(block, previous, model.rotaries, model.dtype))
        elif refusal is None and isinstance(block.mixer, ReferenceAttention):
            layers.append(FusedLayer.of(block, previous, model.rotaries, model.dtype))
        elif refusal is None:
            layers.append(FusedRecurrentLayer.of(block, previous, model.dtype))
        elif gpu_refusal_around_mixer(block, model.dtype) is None:
            layers.append(ReferenceMixerLayer.of(block, previous, refusal, model.dtype))
        else:
            layers.append(ReferenceLayer.of(block, previous, refusal, model.dtype))
    last = None if isinstance(layers[-1], ReferenceLayer) else layers[-1].block
    norm = weights_of(model.head.norm, model.dtype)
    folds = norm is not None and not norm.layer and norm.bias is None
    reference_mixers = [layer.block.layer.mixer for layer in layers if not isinstance(layer, AnyFused)]
    few = small_batch_layers(layers, norm if folds else None, model.head, model.dtype)
    small_batch_refusal = (
        unfused_reasons(layers, model.dtype) if few is None and any(map(is_quantized, model.layers)) else None
    )
    return ExecutionPlan(
        tuple(layers),
        tuple(gemv_layer_for(layer) for layer in layers),
        few,
        small_batch_refusal,
        between(last, norm, model.dtype),
        norm if folds else None,
        _positions(model),
        tuple(dict.fromkeys(rope for mixer in reference_mixers for rope in ropes_of(mixer))),
        compiled_layers(model),
    )


def forward(
    model: PlannedDecoder,
    batch: StepBatch,
    attention: AttentionBackend,
    memory: RecurrentStateMemory | None = None,
    kept: tuple[Sequence[int], dict[int, Tensor]] = ((), {}),
) -> Tensor:
    """See `Decoder.forward`; the logits are of the model's type.

    kept: layers, and where their input states go [T, hidden].
    """
    require_positions(model, batch)
    execution_plan, x = model.execution_plan, _embed(model, batch)
    step = _step(model, batch, attention, x, memory)
    single_row = gemv.supports(x)
    layers = _layers(execution_plan, x, single_row)
    delta: Pending = None
    for index in execution_plan.compiled if is_compiling() and not kept[0] else range(len(layers)):
        if index in kept[0]:
            delta = summed_locally(delta)
            kept[1][index] = _state(layers[index - 1], x, delta, model.dtype)
        if index < len(layers) - 1:
            x, delta = layers[index].run(x, delta, step)
    if not (len(batch.logit_rows) or batch.whole):
        layers[-1].write(x, delta, step)
        return model.no_logits()
    all_rows = batch.whole or len(batch.logit_rows) == len(x)
    x, delta = layers[-1].run(x, delta, step, None if all_rows else batch.logit_rows)
    return _logits(model, x, delta, batch, single_row)


def _state(before: LayerExecutor, x: Tensor, delta: Pending, dtype: torch.dtype) -> Tensor:
    """x plus what is still to be added, in new memory. before: the layer that left it."""
    if delta is None or isinstance(delta, NormedInput):
        return x.clone()
    return between(before.block, None, dtype)(x.clone(), delta)


def _layers(execution_plan: ExecutionPlan, x: Tensor, single_row: bool) -> Sequence[LayerExecutor]:
    if single_row and (execution_plan.few is None or execution_plan.folds):
        return execution_plan.alone
    return execution_plan.few if execution_plan.few is not None and len(x) <= MOST_ROWS else execution_plan.layers


def pieces(
    model: PlannedDecoder,
    batch: StepBatch,
    attention: AttentionBackend,
    x: Tensor,
    rooms: Sequence[tuple[Tensor, Tensor]],
) -> list[Callable[[], None]]:
    """The step of a batch at fixed addresses, cut where each layer attends; `finish` follows.

    No layer may run in torch.
    Piece i writes the sum of what came before layer i to x [T, hidden], and the layer's queries to the first of
    rooms[i], [T, query_heads, head_dim]. It reads the attention output of layer i - 1 in the second buffer of rooms[i -
    1].
    """
    step = _step(model, batch, attention, x)
    layers = [layer for layer in model.execution_plan.layers if isinstance(layer, FusedLayer)]
    assert len(layers) == len(model.layers)

    def first() -> None:
        _embed(model, batch, x)
        layers[0].queries(x, None, step, rooms[0][0])

    def between(before: FusedLayer, layer: FusedLayer) -> None:
        mixed = rooms[before.block.index][1].view(len(x), -1)
        layer.queries(x, before.mix(x, mixed, batch.slots), step, rooms[layer.block.index][0])

    return [first, *(partial(between, *pair) for pair in pairwise(layers))]


def finish(model: PlannedDecoder, x: Tensor, mixed: Tensor, batch: StepBatch) -> Tensor:
    """The logits of `batch.logit_rows`, once the last layer of `pieces` has attended; may write into x."""
    slots = batch.slots
    if not batch.pools and len(batch.logit_rows) != len(x):
        x, mixed, slots = (part.index_select(0, batch.logit_rows) for part in (x, mixed, slots))
    last = model.execution_plan.layers[-1]
    assert isinstance(last, FusedLayer)
    return _logits(model, x, last.mix(x, mixed, slots), batch)


def require_positions(model: PlannedDecoder, batch: StepBatch) -> None:
    """Raises ValueError for sequences longer than the model's tables of angles or positions."""
    most = model.execution_plan.positions
    if most is not None and (longest := max(batch.context_lens)) > most:
        raise ValueError(f"a sequence of {longest} tokens is beyond the {most} positions of the model")


def _positions(model: DecoderParts) -> int | None:
    tables = [len(rotary.table) for rotary in model.rotaries.values()]
    learned = model.config.positions
    return min(tables if learned is None else [*tables, learned.count], default=None)


def _step(
    model: PlannedDecoder,
    batch: StepBatch,
    attention: AttentionBackend,
    x: Tensor,
    memory: RecurrentStateMemory | None = None,
) -> GpuStep:
    pool, execution_plan, own = attention.pool, model.execution_plan, model.embedding.own
    part, layers = (
        pool.parts[0],
        [index for index, layer in enumerate(model.config.attention.layers) if layer is not None],
    )
    if len(pool.parts) == 1 and part.k.shape[0] == len(model.layers):
        keys, values, scales = part.k.unbind(0), part.v.unbind(0), part.scales
    else:
        stored = {index: attention.stored(index) for index in layers}
        keys, values = ({index: each[side] for index, each in stored.items()} for side in (0, 1))
        scales = {index: attention.scales(index) for index in layers}
    if execution_plan.whole:
        return GpuStep(batch, attention, keys, values, scales, memory=memory)
    longest = max(batch.context_lens, default=1)
    angles = {rope: model.rotaries[rope].gather(batch.positions, longest) for rope in execution_plan.reference_ropes}
    extra = (None,) * len(model.layers) if own is None else own(known_ids(batch), x)
    return GpuStep(
        batch,
        attention,
        keys,
        values,
        scales,
        ReferenceStep(batch, attention, angles, step_states(batch, memory)),
        extra,
        memory,
    )


def _embed(model: DecoderParts, batch: StepBatch, out: Tensor | None = None) -> Tensor:
    """The first hidden states [T, hidden], in `out` if given; the pages of the step's tokens are entered."""
    embedding = model.embedding
    if batch.entering is not None:
        enter_pages(batch)
        return batch.entering
    if batch.device is None:
        return embedding(batch.token_ids, batch.positions)
    if embedding.plain:
        return embed(batch, embedding.table, out, embedding.scale)
    x = embedding.placed(
        embedding.changed(embed(batch, embedding.table, None, embedding.scale), batch), batch.positions
    )
    return x if out is None else out.copy_(x)


def _logits(model: PlannedDecoder, x: Tensor, delta: Pending, batch: StepBatch, single_row: bool = False) -> Tensor:
    """gemv: the layers were those of a batch of one.  For a stage before the last one: the states after its layers."""
    if not model.config.stage.ends:
        return model.execution_plan.exit(x, None if isinstance(delta, NormedInput) else delta)
    if batch.whole:
        return model.pooled(model.execution_plan.exit(x, None if isinstance(delta, NormedInput) else delta), batch)
    logits = _head(model, x, delta, single_row)
    config = model.config
    if config.logit_scale == 1 and config.logit_softcap is None:
        return logits
    return adjust(logits, config.logit_scale, config.logit_softcap)


def _head(model: PlannedDecoder, x: Tensor, delta: Pending, single_row: bool) -> Tensor:
    """x += delta, then the last norm and the product with the head."""
    head, norm = model.head, model.execution_plan.last_norm
    if isinstance(delta, NormedInput):
        return of_head(head, delta)
    alone = single_row and has_kernel(head.product) and head.project is None
    if alone and delta is None and norm is not None:
        return multiply(head.product, x, norm)
    y = model.execution_plan.exit(x, delta)
    if alone:
        return multiply(head.product, y)
    return head.product(y if head.project is None else head.project(y))
