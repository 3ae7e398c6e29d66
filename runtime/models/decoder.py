"""A decoder made of the parts that its `ModelSpec` names, computed by torch or by executors that support its layers."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..layers import cpu_kernels
from ..layers.float8_reference import KVScaleFactors
from ..layers.rotary_embedding import RotaryEmbedding
from ..layers.weight_memory import stored_together
from ..quantization.quantized_transform import KeepQuantizedTransform, LayerTransform, QuantizedLayerCount
from ..step.rank_rows import own_rows
from ..step.step_batch import StepBatch
from .cpu.cpu_step import CpuStep, LayerSpan
from .hidden_state_pooling import pooled_sums
from .layer_executors import (
    SMALL_MODEL,
    LayerExecutorChoice,
    capturable,
    claim_experts,
    executors,
    set_expert_placement,
)
from .load_statistics import LoadMemoryCounter, LoadStatistics
from .placement.expert_offload_plan import ExpertOffloadPlan
from .reference.reference_block import ReferenceBlock, Transform
from .reference.reference_embedding import OutputHead, TokenEmbedding, known_ids
from .reference.reference_experts import ReferenceExperts
from .reference.reference_mixer import ReferenceStep, step_states
from .spec.model_spec import ModelSpec
from .spec.weight_targets import ArrivingWeights, LoadedPart, ModelWeights, WeightTarget

if TYPE_CHECKING:
    from .gpu.gpu_step import ExecutionPlan


class AdaptedDecoder(Protocol):
    """See `adapters.shadow.Shadow`."""

    def forward(self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None) -> Tensor: ...

    def forget(self) -> None: ...


class StateCapture(Protocol):
    """See `HiddenStateCapture`."""

    layers: tuple[int, ...]
    newest: Tensor | None

    def forward(
        self, model: Decoder, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None
    ) -> Tensor: ...


class ObservesLoading(Protocol):
    """See `loading.packed_cache.cached_weights.LoadRecorder`."""

    def loaded(self, part: LoadedPart) -> None: ...

    def sealed(self, part: LoadedPart) -> None: ...


class Decoder:
    """`load` gives it its weights, part by part; nothing has memory before.

    dtype: of weights, activations and KV; norms compute in float32.
    fused: steps run by gpu_step.py on a GPU with Triton, each layer by its kernels or by torch; otherwise by torch and
        the compiled kernels.
    few_bits: how weights were quantized, if they were.
    loaded: statistics of loading the weights; None: they are random.
    kv_scales: the checkpoint's scales of each layer's float8 keys and values; None: it has none.  A text: why they
        cannot be used.
    expert_places: decides where experts are stored; None: all on the device.
    adapted: runs the steps that have adapters, if the engine accepts any.
    step: runs layers of small steps (cpu_step.py), once sealed, on a CPU with the compiled kernels; None: torch runs
        all.
    """

    few_bits: tuple[QuantizedLayerCount, ...] = ()
    loaded: LoadStatistics | None = None
    kv_scales: tuple[KVScaleFactors | str | None, ...] = ()
    capture: StateCapture | None = None
    adapted: AdaptedDecoder | None = None

    def __init__(
        self,
        model: ModelSpec,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        expert_places: ExpertOffloadPlan | None = None,
    ) -> None:
        self.expert_places = expert_places
        self.config, self.dtype, self.device = model, dtype, torch.device(device)
        nowhere = torch.device("meta")
        self.embedding = TokenEmbedding(model, dtype, nowhere)
        self.layers = [self._block(index, nowhere) for index in range(len(model.layers))]
        self.head = OutputHead(model, self.embedding, dtype, nowhere)
        self.fused = _can_fuse(self)
        self.step: CpuStep | None = None
        positions = model.max_position if self.fused else 64
        self.rotaries = {rope: RotaryEmbedding(rope, dtype, self.device, positions) for rope in model.ropes}
        self.parameter_count = sum(place.target.numel() for place in self.places())

    def _block(self, index: int, device: torch.device) -> ReferenceBlock:
        model = self.config
        block = ReferenceBlock(
            model.layers[index],
            model.names,
            index,
            model.hidden_size,
            self.dtype,
            device,
            model.per_layer,
            model.stage.first,
        )
        set_expert_placement(block)
        return block

    @property
    def parts(self) -> list[TokenEmbedding | ReferenceBlock | OutputHead]:
        """In the order in which they are computed and loaded."""
        return [self.embedding, *self.layers, self.head]

    def allocate(self, index: int) -> None:
        """Allocate memory for a part. A tied head shares the embedding's table, which must exist. Nothing runs before
        `finish`.
        """
        vars(self).pop("execution_plan", None)  # it would keep the weights of before
        if self.adapted is not None:
            self.adapted.forget()
        self.step = None
        if index == 0:
            self.embedding = TokenEmbedding(self.config, self.dtype, self.device)
        elif index <= len(self.layers):
            self.layers[index - 1] = self._block(index - 1, self.device)
        else:
            self.head = OutputHead(self.config, self.embedding, self.dtype, self.device)

    def release(self, index: int) -> None:
        """Free a layer: it has no memory until it is allocated again. The embedding and the head stay."""
        if 0 < index <= len(self.layers):
            self.layers[index - 1] = self._block(index - 1, torch.device("meta"))

    @torch.inference_mode()
    def forward(
        self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None = None
    ) -> Tensor:
        """Compute a planned batch: logits of its `logit_rows`, [R, vocabulary], float32 on the CPU, else `dtype`.

        memory: of the recurrent states, if layers keep any.
        """
        if self.config.share is not None:
            batch.own = own_rows(batch, self.config.share)
            if batch.own.batch is not None:
                attention.plan(batch.own.batch)
        if batch.adapters is not None and self.adapted is not None:
            return self.adapted.forward(batch, attention, memory)
        return self.forward_base(batch, attention, memory)

    def forward_base(
        self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None
    ) -> Tensor:
        """The same by these layers only, whatever adapters the batch has."""
        if self.capture is not None:
            return self.capture.forward(self, batch, attention, memory)
        if self.fused:
            from .gpu import gpu_step

            return gpu_step.forward(self, batch, attention, memory)
        if self.step is None:
            return self.span_by_reference(
                LayerSpan(0, len(self.layers), False), None, self.by_reference(batch, attention, memory)
            )
        spans, seen = self.step.plan(batch, attention)
        step = None if all(span.compiled for span in spans) else self.by_reference(batch, attention, memory)
        x: Tensor | None = None
        for span in spans:
            x = (
                self.step.run(self, span, x, batch, attention, seen, memory)
                if step is None or span.compiled
                else self.span_by_reference(span, x, step)
            )
        assert x is not None
        return x

    def by_reference(
        self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None
    ) -> ReferenceStep:
        longest = max(batch.context_lens)
        angles = {rope: rotary.gather(batch.positions, longest) for rope, rotary in self.rotaries.items()}
        return ReferenceStep(batch, attention, angles, step_states(batch, memory))

    def embedded(self, batch: StepBatch) -> Tensor:
        """The states before the first layer, [T, hidden]."""
        if batch.entering is not None:
            return batch.entering
        return self.embedding(known_ids(batch), batch.positions)

    def span_by_reference(self, span: LayerSpan, x: Tensor | None, step: ReferenceStep) -> Tensor:
        """Hidden states [T, hidden] after a span of layers, from those before it, or the logits.

        x: None for the first span.
        """
        x = self.embedded(step.batch) if x is None else x
        own: tuple[Tensor | None, ...] = (None,) * len(self.layers)
        if self.embedding.own is not None:  # then all layers are one span
            own = self.embedding.own(known_ids(step.batch), x)
        count = len(self.layers)
        for layer, extra in zip(self.layers[span.start : min(span.stop, count - 1)], own[span.start :], strict=False):
            x = layer.forward(x, step, None, extra)
        return self._finish(x, step, own[-1]) if span.stop == count else x

    def _finish(self, x: Tensor, step: ReferenceStep, own: Tensor | None) -> Tensor:
        """The last layer, and the requested logits."""
        last, batch = self.layers[-1], step.batch
        if not (len(batch.logit_rows) or batch.whole):  # only keys and values are needed
            last.store(x, step)
            return self.no_logits()
        all_rows = batch.whole or len(batch.logit_rows) == len(x)
        return self.finished(last.forward(x, step, None if all_rows else batch.logit_rows, own), batch)

    def finished(self, x: Tensor, batch: StepBatch) -> Tensor:
        """Logits from the states after the last layer: of the requested rows, or of all rows if any are pooled.

        For a pipeline stage before the last one: these states.
        """
        if not self.config.stage.ends:
            return x
        x = self.head.norm(x) if self.head.norm else x
        return self.pooled(x, batch) if batch.whole else self._logits(x)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden)
        return logits.float() if self.device.type == "cpu" else logits

    def pooled(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Fill the batch's sums from the normed states of all its tokens [T, hidden]; returns the requested logits."""
        batch.hidden, batch.sums = hidden, pooled_sums(hidden, batch.pools) if batch.pools else None
        if not len(batch.logit_rows):
            return self.no_logits()
        return self._logits(hidden.index_select(0, batch.logit_rows))

    def no_logits(self) -> Tensor:
        """The result of a step that requests no logits, [0, vocabulary]."""
        dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        return torch.empty(0, self.config.vocab_size, dtype=dtype, device=self.device)

    @cached_property
    def execution_plan(self) -> ExecutionPlan:
        """How steps run on a GPU, once sealed."""
        from .gpu.gpu_step import execution_plan_of

        return execution_plan_of(self)

    def places(self) -> Iterator[WeightTarget]:
        """Where each tensor of a checkpoint goes, before `seal`."""
        for part in self.parts:
            yield from part.places()

    def executors(self) -> list[LayerExecutorChoice]:
        """For each layer of a sealed model, its executor and why no faster one runs it."""
        return executors(self, None if self.step is None else self.step.claimed)

    @property
    def capturable(self) -> bool:
        """Whether steps may be CUDA graphs: no mixer forbids it, and no experts run in torch, which synchronizes on the
        token counts.
        """
        return capturable(self)

    def expert_counts(self) -> list[list[int]]:
        """For each layer, how often each expert was chosen since the weights were loaded; [] for a layer without
        experts.

        [] if no layer has experts. On a GPU this waits for the steps in flight.
        """
        counts = [layer.ffn.counts if isinstance(layer.ffn, ReferenceExperts) else None for layer in self.layers]
        return (
            [] if all(each is None for each in counts) else [[] if each is None else each.tolist() for each in counts]
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, in every layout that is kept."""
        return sum(
            tensor.numel() * tensor.itemsize for tensor in {id(tensor): tensor for tensor in self.tensors()}.values()
        )

    def tensors(self) -> Iterator[Tensor]:
        """All kept tensors of the weights; some appear more than once."""
        for index in range(len(self.parts)):
            yield from self.tensors_of(index)

    def tensors_of(self, index: int) -> Iterator[Tensor]:
        """All kept tensors of a part."""
        yield from self.parts[index].tensors()

    @torch.no_grad()
    def load(
        self, weights: ModelWeights, transform: Transform | None = None, observer: ObservesLoading | None = None
    ) -> Decoder:
        """Load all parts anew, whatever they hold now, and bring them into the layout to compute with.

        transform: called for every projection with its name (qkv, output, gate_up or up, down, router, switch, project,
            head). A layer that it returns in place of the loaded one is used as it is.
        observer: sees each part before it is sealed, and after it.
        """
        keeping, memory = KeepQuantizedTransform(transform), LoadMemoryCounter()
        compiled = transform is None and cpu_kernels.can_multiply(self.dtype, self.device)
        with stored_together(), cpu_kernels.torch_on_one_thread() if compiled else nullcontext():
            for index in self.loaded_parts(weights, weights.ahead and transform is None, memory):
                if observer is not None:
                    observer.loaded(self.parts[index])
                self.seal_part(index, keeping)
                if observer is not None:
                    observer.sealed(self.parts[index])
                memory.sealed(self.tensors_of(index))
        self.loaded = memory.loaded(weights.bytes) if weights.bytes else None
        self.few_bits = keeping.layer_counts()
        return self.finish()

    def loaded_parts(
        self, weights: ModelWeights, ahead: bool = False, memory: LoadMemoryCounter | None = None
    ) -> Iterator[int]:
        """The parts one after the other, each when its tensors are there and it is to be sealed.

        ahead: the next one is fetched meanwhile.  memory: counts what comes.
        """
        coming: deque[tuple[int, ArrivingWeights]] = deque()
        for index in range(len(self.parts) + ahead):
            if index < len(self.parts):
                self.allocate(index)
                coming.append((index, weights.fetch(index, self.parts[index])))
                if memory is not None:
                    memory.comes(coming[-1][1].bytes)
            if index >= ahead:
                number, arriving = coming.popleft()
                arriving.wait()
                del arriving  # what it holds goes while the part is sealed
                yield number

    def seal_part(self, index: int, transform: Transform | None = None) -> None:
        by_part = transform if isinstance(transform, LayerTransform) else None
        if by_part:
            by_part.begin(self, index)
        self.parts[index].seal(self.parameter_count * self.dtype.itemsize <= SMALL_MODEL, transform)
        if by_part:
            by_part.end(self, index)
        if 0 < index <= len(self.layers):
            claim_experts(self.layers[index - 1])
            if self.expert_places is not None:
                self.expert_places.settle(self.layers[index - 1], self.dtype if self.fused else None)

    def finish(self) -> Decoder:
        """Once all parts are sealed."""
        self.step = CpuStep.of(self)
        return self


def _can_fuse(model: Decoder) -> bool:
    return model.device.type == "cuda" and importlib.util.find_spec("triton") is not None
