"""What an engine has in addition whose layers are in several stages, and the choice between ranks and stages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..attention.attention_layout import listed
from ..attention.backend_protocols import AttentionLayout
from ..cache.multi_width_kv_pools import Pool
from ..cache.recurrent_state_memory import StateShapes, bytes_per_state
from ..cache.recurrent_state_slots import FIRST_SLOT
from ..errors import ConfigError
from ..executor.device_choice import DeviceChoice
from ..models.decoder import Decoder
from ..models.describe.explain_executors import LayerGroup
from ..models.spec.model_spec import ModelSpec
from ..models.transformers_backend import TransformersModelSpec
from ..parallel.pp.pipeline_links import PipelineLinks, StageLinks, StageRankGroup
from ..parallel.pp.pipeline_stages import RankPlace, require_state, sizes, stage_boundaries, stage_of
from ..parallel.tp.sharded_source import require
from ..parallel.tp.tensor_parallel_split import narrowed_model
from ..parallel.workers.worker_group import RankGroup
from ..quantization import Transform
from .build_ranks import RanksBuilder
from .engine_config import DeviceDefaults
from .memory_plan import stored_dtype


class StagesBuilder(RanksBuilder):
    """whole: the model of all stages.

    cuts: see `stage_boundaries`.  links: of rank 0's stage, once the others are there.
    """

    links: StageLinks

    def __init__(
        self,
        team: RankGroup,
        config: DeviceDefaults,
        choice: DeviceChoice,
        path: Path,
        whole: ModelSpec,
        cuts: list[int],
    ) -> None:
        super().__init__(team, config, choice, path)
        self.whole, self.cuts = whole, cuts
        self._place = RankPlace.of(0, team.size, len(cuts) - 1)

    @property
    def layers(self) -> list[int]:
        """Of each stage, how many it has."""
        return [stop - first for first, stop in zip(self.cuts, self.cuts[1:], strict=False)]

    def load(self, config: DeviceDefaults, transform: Transform | None, context: int, seed: int | None) -> Decoder:
        stages = len(self.layers)
        model = self._begin(config, transform, context, seed, stages)
        if self._choice.device.type == "cuda":
            self._compare_gpus(model, config, stages)
            return model
        ranks = self.team.met(lambda arrived: StageRankGroup(0, self.team.size, self.team.meeting, stages, arrived))
        self.part.sums = ranks if ranks.ranks > 1 else None
        self.links = PipelineLinks(ranks, self.part.join(model))
        self._met()
        return model

    def _link(self, tokens: int) -> None:
        if self.ranks is not None:
            from ..parallel.pp.cuda_pipeline_links import CudaPipelineLinks

            self.links = CudaPipelineLinks(self.ranks, self._model, tokens)

    def other_bytes(self) -> int:
        if self.ranks is not None:  # each has its own GPU: the one that stores most of a token sets the number
            each = [own // self._place.split.ranks for own in self._per_token()]
            return max(each) - each[0]
        return sum(self._per_token()) - self._per_token()[0] // self._place.split.ranks

    def elsewhere(self, pool: Pool) -> int:
        return sum(self._per_token()) - pool.bytes // pool.slots

    @property
    def _narrow(self) -> ModelSpec:
        """What the ranks of one place in all stages hold."""
        split = self._place.split
        return self.whole if split.ranks == 1 else narrowed_model(self.whole, split)

    def layouts(self) -> list[AttentionLayout]:
        return [] if self.ranks is None else self._stored()

    def _stored(self) -> list[AttentionLayout]:
        """Of each stage what a rank stores."""
        return [stage_of(self._narrow, self.cuts, number).attention for number in range(len(self.layers))]

    def _per_token(self) -> list[int]:
        """Bytes that the ranks of each stage store of a token."""
        dtype = stored_dtype(self._config, self._choice.dtype)
        return [self._place.split.ranks * layout.bytes_per_slot(dtype) for layout in self._stored()]

    def states(self, own: StateShapes) -> StateShapes:
        if self.ranks is None:
            return self.whole.states
        stages = [stage_of(self._narrow, self.cuts, number).states for number in range(len(self.layers))]
        return max(stages, key=lambda shapes: bytes_per_state(shapes, self._choice.dtype))

    def describe(self, model: ModelSpec, info: dict[str, Any]) -> dict[str, Any]:
        """In addition to what all ranks report: which layers, how many weights and which processes each stage has."""
        found, numbers, width = super().describe(model, info), sizes(self.whole), self._place.split.ranks
        stages = [
            {
                "layers": listed(range(first, stop)),
                "parameters": sum(numbers[first:stop]),
                "pids": found["rank_pids"][at * width : (at + 1) * width],
            }
            for at, (first, stop) in enumerate(zip(self.cuts, self.cuts[1:], strict=False))
        ]
        states = info["states"] and (info["states"] + FIRST_SLOT) * bytes_per_state(
            self.whole.states, self._choice.dtype
        )
        return found | {
            "kv_bytes": self._bytes(info),
            "state_bytes": states,
            "pipeline_parallel": len(stages),
            "stages": stages,
        }

    def _bytes(self, info: dict[str, Any]) -> int:
        """Of the keys and values of all stages."""
        dtype, page = stored_dtype(self._config, self._choice.dtype), info["page_size"]
        slots, windows = info["kv_tokens"] + page, info["window_tokens"] and info["window_tokens"] + page
        if not windows:
            return int(slots * sum(self._per_token()))
        apart = [layout.apart(info["context"]) for layout in self._stored()]
        found = [
            slots * layout.bytes_per_slot(dtype, windowed=False) + windows * layout.bytes_per_slot(dtype, windowed=True)
            for layout in apart
        ]
        return self._place.split.ranks * int(sum(found))

    def _elsewhere(self, received: list[bytes]) -> tuple[LayerGroup, ...]:
        width = self._place.split.ranks
        rows: list[tuple[LayerGroup, ...]] = [pickle.loads(each) for each in received[width - 1 :: width]]
        return tuple(
            replace(row, layers=_moved(row.layers, first))
            for first, stage in zip(self.cuts[1:], rows, strict=False)
            for row in stage
        )


def _moved(layers: str, first: int) -> str:
    """Numbers of layers as `listed` writes them, counted from the first layer of all."""
    return ", ".join("-".join(str(int(number) + first) for number in run.split("-")) for run in layers.split(", "))


def make_ranks_builder(
    config: DeviceDefaults,
    choice: DeviceChoice,
    model: ModelSpec | TransformersModelSpec,
    path: Path,
    broken: Callable[[BaseException], None],
) -> RanksBuilder:
    """Starts the other ranks.

    Raises ConfigError for a model that cannot be shared out, and for a sharded state that is not theirs, before any is
    started.
    """
    if isinstance(model, TransformersModelSpec):
        raise ConfigError(
            f"{config.ranks_text}): {model.architecture} runs by transformers' own implementation, which is not "
            "shared out"
        )
    if config.tensor_parallel > 1:
        require(model, config.tensor_parallel, config.whole_experts, config.by_rows)
    if not config.dummy:
        require_state(path, config.parts, config.load_format, config.changes_weights, config.by_rows)
    if config.pipeline_parallel == 1:
        return RanksBuilder(RankGroup(config.ranks, config.heartbeat, broken), config, choice, path)
    cuts = stage_boundaries(model, config.pipeline_parallel)
    return StagesBuilder(RankGroup(config.ranks, config.heartbeat, broken), config, choice, path, model, cuts)
