"""A model of transformers with the interface of the runner: a packed step in, logits out."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...attention.attention_layout import AttentionLayout
from ...attention.backend_protocols import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...cache.recurrent_state_shape import RecurrentStateShape
from ...errors import ConfigError
from ...step.step_batch import StepBatch
from ..hidden_state_pooling import pooled_sums
from ..reference.reference_embedding import known_ids
from .transformers_attention import AttentionProbe, TransformersStep, during_step
from .transformers_config import TransformersModelSpec

WATCHED = 3  # tokens of the pass that records the layers' requirements of attention


class TransformersDecoder:
    """See `Decoder`, whose methods the engine uses; no kernels of ours compute its layers.

    config: with `attention` it is what the engine asks a `ModelSpec`.
    """

    fused, step, expert_places = False, None, None

    def __init__(self, model: TransformersModelSpec, module: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.module, self.dtype, self.device = module, dtype, device
        self.weights = [*module.parameters(), *module.buffers()]  # found by code that moves weights
        self.parameter_count = sum(parameter.numel() for parameter in module.parameters())
        self.config = ProbedModelSpec(model, self._watch())

    @torch.inference_mode()
    def _watch(self) -> AttentionLayout:
        watching = AttentionProbe()
        ids = torch.zeros(1, WATCHED, dtype=torch.int64, device=self.device)
        with during_step(watching):
            self._run(ids, torch.arange(WATCHED, device=self.device)[None])
        if not watching.found:
            raise ConfigError(f"{type(self.module).__name__} never calls the attention that it was given")
        return AttentionLayout.of(watching.found)

    def _run(self, ids: Tensor, positions: Tensor, **options: Any) -> Any:
        return self.module(input_ids=ids, position_ids=positions, use_cache=False, **options)

    @torch.inference_mode()
    def forward(
        self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None = None
    ) -> Tensor:
        """Logits of the batch's `logit_rows`, [R, vocabulary], float32 on the CPU, else `dtype`."""
        if batch.device is not None and batch.token_ids.is_cuda and attention.name != "torch_native":
            from ...kernels.embed_tokens import enter_pages  # needs Triton, as everything that reads the table

            enter_pages(batch)
        running = TransformersStep(batch, attention)
        ids, positions = known_ids(batch).long()[None], batch.positions.long()[None]
        rows = batch.logit_rows.long()
        wanted = rows if len(rows) else rows.new_zeros(1)  # a step that requests none computes one
        with during_step(running):
            out = self._run(ids, positions, logits_to_keep=wanted, output_hidden_states=bool(batch.pools))
        if running.layer != len(self.config.attention.layers):
            raise RuntimeError(f"{running.layer} layers attended, {len(self.config.attention.layers)} were expected")
        if batch.pools:
            hidden = out.hidden_states[-1][0]
            batch.sums = pooled_sums(hidden, batch.pools)
        logits: Tensor = out.logits[0] if len(rows) else out.logits[0][:0]
        return logits.float() if self.device.type == "cpu" else logits

    @property
    def weight_bytes(self) -> int:
        return sum(
            tensor.numel() * tensor.itemsize for tensor in {id(tensor): tensor for tensor in self.weights}.values()
        )

    def executors(self) -> list[tuple[str, str | None]]:
        """The executor of each layer, and why no faster one."""
        why = (
            f"no family describes {self.config.architecture}"
            if not self.config.chosen
            else "implementation='transformers' was asked for"
        )
        return [("transformers", why)] * len(self.config.attention.layers)

    def expert_counts(self) -> list[list[int]]:
        """transformers does not report which experts it chooses."""
        return []


class ProbedModelSpec:
    """A TransformersModelSpec, with its layers' requirements of attention.

    chosen: by the user, although a family describes it.
    states: no layer keeps any, since those that do are refused.
    """

    states: ClassVar[dict[int, tuple[RecurrentStateShape, ...]]] = {}

    def __init__(self, model: TransformersModelSpec, attention: AttentionLayout) -> None:
        self.model, self.attention = model, attention
        self.architecture, self.notes, self.dtype = model.architecture, model.notes, model.dtype
        self.vocab_size, self.hidden_size, self.max_position = model.vocab_size, model.hidden_size, model.max_position
        self.chosen = model.chosen
