"""What a rank holds of the model: loaded at the start, and anew while it runs."""

from __future__ import annotations

from pathlib import Path

from ...errors import CheckpointError
from ...loading.checkpoint import OpenCheckpoint
from ...loading.load_plan import LoadPlan
from ...loading.load_weights import fill, plan_of, require
from ...models.decoder import Decoder
from ...models.spec.model_spec import ModelSpec
from ...quantization import Transform
from ..pp.pipeline_stages import RankPlace, load_rank_part, part_of
from ..rank_collectives import HasRank, joined
from .worker_channel import RankStart


class RankWeights:
    """Of a rank.

    whole: the model of all ranks, once loaded.  sums: with whom the rank's products are joined, once it has met them;
    None: with none.
    """

    whole: ModelSpec
    sums: HasRank | None = None

    def __init__(self, begin: RankStart, transform: Transform | None) -> None:
        self.place, self._begin, self._transform = (
            RankPlace.of(begin.rank, begin.ranks, begin.stages, begin.whole, begin.rows),
            begin,
            transform,
        )
        self._plan: LoadPlan | None = None
        self.deterministic = begin.deterministic

    @property
    def path(self) -> Path:
        """That the engine began with."""
        return Path(self._begin.path)

    def load(self) -> Decoder:
        begin = self._begin
        checkpoint = self.place.open(self.path, begin.context, begin.seed is None, begin.load_format)
        self.whole = checkpoint.model
        return load_rank_part(checkpoint, self.place, begin.dtype, begin.device, begin.seed, self._transform)

    def opened(self, path: Path) -> OpenCheckpoint:
        """Another checkpoint: for all ranks, or what is stored there for this one."""
        return self.place.open(path, self._begin.context, load_format=self._begin.load_format)

    def plan(self, model: Decoder, checkpoint: OpenCheckpoint) -> LoadPlan:
        """What of a checkpoint goes where in the rank's model; `fill` takes the newest."""
        plan = self._plan = plan_of(model, part_of(checkpoint, self.place))
        require(plan, model, self._transform)
        if (few := plan.quantized) and self._begin.whole is not None and model.fused:
            raise CheckpointError(
                f"{min(few)} is quantized, which expert_parallel does not take on GPUs; take the model as it was before"
            )
        return plan

    def fill(self, model: Decoder) -> None:
        """Load it by the newest plan."""
        assert self._plan is not None
        fill(model, self._plan, self._transform)
        self.join(model)

    def join(self, model: Decoder) -> Decoder:
        return model if self.sums is None else joined(model, self.sums)
