"""Other weights for an engine that runs: between two steps, and no request fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from ..attention import AttentionBackend, AttentionLayout
from ..cache.multi_width_kv_pools import Pool
from ..errors import CheckpointError, RuntimeFailure
from ..executor.runner_protocol import Runner
from ..loading.checkpoint import OpenCheckpoint
from ..loading.load_plan import LoadPlan
from ..loading.load_weights import fill, plan_of, require
from ..loading.packed_cache.background_writer import PackedWeightsWriter
from ..loading.tensor_files.memory_source import MemoryWeightSource
from ..models.decoder import Decoder
from ..models.kv_cache_scales import describe_scales, take_scales
from ..models.load_statistics import describe_loading
from ..models.spec.model_spec import ModelSpec
from ..quantization import Transform
from ..quantization.readers import WeightReaders
from .engine_core import EngineCore, Origin

log = logging.getLogger("sgl.runtime")


class UpdatedModelPart(Protocol):
    """Rank 0's part of a model on several ranks."""

    @property
    def whole(self) -> ModelSpec:
        """The model of all ranks together."""
        ...


class UpdatedRanks(Protocol):
    """The ranks of an engine, as an update of its weights reaches them."""

    @property
    def part(self) -> UpdatedModelPart: ...

    def plan(self, model: Decoder, path: Path) -> tuple[LoadPlan, int]:
        """Rank 0's plan to load another checkpoint, and the bytes that all ranks read. Every rank keeps its plan."""
        ...

    def let_go(self, runner: Runner) -> None:
        """Frees what depends on the present weights. runner: rank 0's."""
        ...

    def fill(self, model: Decoder) -> None:
        """Every rank loads by its plan. Raises what one of them could not do, when all are done."""
        ...

    def renewed(self) -> dict[str, Any]:
        """What of `Engine.info` differs after the update."""
        ...


class WeightUpdater:
    """Loads other weights into the model of an engine. `update` runs on the scheduler thread.

    layout: of the pool.  origin: where the present weights came from; None: they are random.  opened: `open_checkpoint`
        with the engine's options.
    side: of an engine of several ranks.  writer: of the cache of packed weights, where it writes.
    """

    def __init__(
        self,
        core: EngineCore,
        pool: Pool,
        layout: AttentionLayout,
        origin: Path | None,
        opened: Callable[[Path], OpenCheckpoint],
        transform: Transform | None,
        make_attention: Callable[[], AttentionBackend],
        side: UpdatedRanks | None = None,
        writer: PackedWeightsWriter | None = None,
    ) -> None:
        self._core, self._pool, self._layout, self._origin, self._open = core, pool, layout, origin, opened
        self._transform, self._make_attention, self._side = transform, make_attention, side
        self._writer = writer

    def update(self, origin: Origin) -> tuple[int, dict[str, Any]]:
        """Bytes of the weights that are read, and what of `Engine.info` is another now.

        Raises ConfigError, with the weights as they were, for others than the model's.
        """
        model = self._core.runner.model
        if not isinstance(model, Decoder):
            raise RuntimeFailure(
                f"{model.config.architecture} runs by transformers' own implementation, whose weights cannot be "
                "updated; open a new engine"
            )
        if self._core.asleep:
            raise RuntimeFailure("the engine sleeps; wake it before its weights are updated")
        plan, size = self._planned(origin, model)
        if self._writer is not None:
            self._writer.stop()
        self._core.pause()
        self._core.flush()
        self._replace(model, plan)
        if not isinstance(self._core.adapters, str):
            self._core.adapters.rebase()
        self._origin = None if isinstance(origin, Mapping) else Path(origin)
        return size, {
            "few_bits": [str(kept) for kept in model.few_bits],
            "loading": describe_loading(model),
            "kv_scales": describe_scales(self._pool, self._layout),
        } | ({} if self._side is None else self._side.renewed())

    def _planned(self, origin: Origin, model: Decoder) -> tuple[LoadPlan, int]:
        """What goes where, and the bytes that will be read, of all ranks."""
        if self._side is None:
            plan = plan_of(model, self._opened(origin, model.config))
            require(plan, model, self._transform)
            return plan, plan.bytes
        self._opened(origin, self._side.part.whole)
        return self._side.plan(model, Path(str(origin)))

    def forget(self) -> None:
        """The engine is closed: nothing here may keep its memory."""
        if self._writer is not None:
            self._writer.finish()
        for name in ("_pool", "_make_attention", "_side"):
            vars(self).pop(name, None)

    def _opened(self, origin: Origin, model: ModelSpec) -> OpenCheckpoint:
        if isinstance(origin, Mapping):
            return OpenCheckpoint(
                model, [MemoryWeightSource("update_weights", origin)], WeightReaders.of(None, ""), "update_weights"
            )
        checkpoint = self._open(Path(origin))
        other = [
            field.name
            for field in fields(ModelSpec)
            if field.name != "notes" and getattr(checkpoint.model, field.name) != getattr(model, field.name)
        ]
        if other:
            raise CheckpointError(
                f"{origin} is another model than the engine's: it differs in {', '.join(other)}; open an engine for it"
            )
        return checkpoint

    def _replace(self, model: Decoder, plan: LoadPlan) -> None:
        """Computes nothing until an update succeeds where neither the new nor the previous weights can be loaded."""
        runner = self._core.runner
        if not self._core.halted:
            runner.release() if self._side is None else self._side.let_go(runner)
        self._core.halted = True
        try:
            self._fill(model, plan)
        except Exception as error:
            self._restore(model, error)
            self._go_on()
            raise
        self._go_on()

    def _fill(self, model: Decoder, plan: LoadPlan) -> None:
        if self._side is None:
            fill(model, plan, self._transform)
        else:
            self._side.fill(model)  # by the plan that it made
        take_scales(self._pool, model, self._layout)

    def _go_on(self) -> None:
        if self._side is not None:
            self._side.renewed()  # before steps
        if self._core.runner.team is not None:
            self._core.runner.team.wake()
        self._core.runner.restore(self._make_attention())
        self._core.halted = False
        self._core.resume()

    def _restore(self, model: Decoder, error: Exception) -> None:
        """The weights of before, after a failure that may have left some of each."""
        halted = "the engine computes nothing until update_weights succeeds; otherwise open a new one"
        if self._origin is None:
            raise RuntimeFailure(
                f"the update broke off ({error}), and the weights of before are in no file: {halted}"
            ) from error
        log.warning("the update broke off (%s); the weights of before are loaded again", error)
        try:
            self._fill(model, self._planned(self._origin, model)[0])
        except Exception as again:
            raise RuntimeFailure(
                f"the update broke off ({error}), and the weights of before cannot be loaded ({again}): {halted}"
            ) from error
