"""A draft model, or a head, next to its target: checked, loaded, given memory, and made a drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from ..attention import AttentionBackend, attention_backend
from ..cache.multi_width_kv_pools import Pool
from ..errors import ConfigError
from ..executor.device_choice import DeviceChoice
from ..executor.draft_head_steps import DraftHeadSteps, ObservedSteps
from ..executor.eager_runner import EagerRunner
from ..executor.runner_protocol import Runner
from ..loading import describe, load_model, resolve_model
from ..loading.draft_head_files import DraftHeadFiles, kind_of, open_draft_head, open_mtp_head
from ..models.decoder import Decoder
from ..models.draft_head import DraftHead
from ..models.hidden_state_capture import HiddenStateCapture
from ..models.spec.model_spec import ModelSpec
from ..models.transformers_backend import AnyDecoder, TransformersModelSpec
from ..speculative.draft_head_state import DraftHeadStates
from ..speculative.draft_length_control import DraftLengthControl
from ..speculative.draft_model_state import DraftModelStates
from ..speculative.draft_model_timing import DraftModelTiming
from ..speculative.model_drafter import ModelDrafter
from ..text.tokenizer import Tokenizer
from ..watch.engine_stats import Stats
from . import memory_plan
from .build_prefix_cache import plain_cache
from .build_runner import make_runner
from .build_tokenizer import load_tokenizer
from .engine_config import DeviceDefaults, EngineConfig


class DraftBuilder:
    """What all kinds have in common.

    The steps of building one, in order: described (at once), `load`, `join`, `take`, `drafter`.

    per_token: bytes of its keys and values, which are stored in a pool of as many tokens as the target's.
    """

    kind: str
    model: Decoder | DraftHead
    pool: Pool
    runner: Runner
    attends_by = "auto"

    def __init__(self, config: DeviceDefaults, choice: DeviceChoice, path: Path, description: ModelSpec) -> None:
        self.config, self.choice, self.path, self.description = config, choice, path, description
        self.per_token = description.attention.bytes_per_slot(choice.dtype)
        self.made: ModelDrafter | None = None

    @property
    def seed(self) -> int | None:
        """Of random weights."""
        return (self.config.seed or 0) if self.config.dummy else None

    def load(self, target: Tokenizer, path: Path) -> None:
        """Before the target's weights. target, path: the tokenizer that a model must have too, and whose."""

    def join(self, target: AnyDecoder) -> None:
        """After the target's."""

    def planned(self, plan: memory_plan.MemoryPlan) -> memory_plan.MemoryPlan:
        """With what it takes in addition to its keys and values; on a GPU the weights are in what was measured."""
        if self.choice.device.type == "cuda":
            return replace(
                plan, reserved=plan.reserved + memory_plan.ATTENTION + (memory_plan.GRAPHS if self.config.graphs else 0)
            )
        return replace(plan, weights=plan.weights + self.model.weight_bytes)

    def take(self, slots: int) -> Pool:
        """The memory of its keys and values."""
        self.pool = self.description.attention.pool(slots, self.choice.dtype, self.choice.device)
        return self.pool

    def attention(self) -> AttentionBackend:
        """Built anew for a pool that came back from a sleep."""
        config = self.config
        return attention_backend(
            self.attends_by,
            self.pool,
            self.description.attention,
            page_size=config.page_size,
            max_running=config.max_running,
            context=self.description.max_position,
            deterministic=config.deterministic and self.attends_by == "auto",
            dtype=self.model.dtype,
        )

    def drafter(self, control: DraftLengthControl | None, stats: Stats, tokens: int, target: Runner) -> ModelDrafter:
        """tokens: of the target's vocabulary.  target: its runner."""
        self.runner, shadows = self._running(target)
        size = min(tokens, self.description.vocab_size)
        self.made = ModelDrafter(
            self.runner, shadows, DraftModelTiming(control), stats, size, self.description.max_position, self._ids
        )
        return self.made

    @property
    def _ids(self) -> Tensor | None:
        return None

    def _running(self, target: Runner) -> tuple[Runner, DraftModelStates]:
        """What computes it, and what it has computed."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Of all that is stored, and of what it computes with, until `restore`."""
        if self.made is not None:
            self.made.forget()
            self.runner.release()

    def restore(self) -> None:
        if self.made is not None:
            self.runner.restore(self.attention())

    def describe(self) -> dict[str, Any]:
        """For `Engine.info`."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "architecture": self.description.architecture,
            "parameters": self.model.parameter_count,
            "weight_bytes": self.model.weight_bytes,
            "kv_tokens": self.pool.slots - self.config.page_size,
            "kv_bytes": self.pool.bytes,
        }


class DraftModelBuilder(DraftBuilder):
    """A whole model."""

    kind = "model"

    def __init__(self, config: DeviceDefaults, choice: DeviceChoice, path: Path) -> None:
        found = describe(path, None, "auto", False)
        if isinstance(found, TransformersModelSpec):
            raise ConfigError(
                f"{option(config)}: {found.architecture} runs by transformers' own implementation; a draft model must "
                "be of a family of sgl's"
            )
        if found.states:
            raise ConfigError(
                f"{option(config)}: {found.architecture} has recurrent layers, whose state after a rejected draft "
                "token would be wrong; take another draft model"
            )
        super().__init__(config, choice, path, found)

    def load(self, target: Tokenizer, path: Path) -> None:
        """Raises ConfigError for another tokenizer."""
        _require_same(target, path, load_tokenizer(self.path, EngineConfig()), self.path, option(self.config))
        self.model = load_model(
            self.path, self.choice.dtype, self.choice.device, self.seed, load_format=self.config.load_format
        )

    def _running(self, target: Runner) -> tuple[Runner, DraftModelStates]:
        assert isinstance(self.model, Decoder)
        runner = make_runner(
            self.model,
            self.attention(),
            replace(self.config, run_ahead=False),
            self.choice,
            self.description.max_position,
        )
        return runner, DraftModelStates(plain_cache(self.config, self.pool))


class DraftHeadBuilder(DraftBuilder):
    """A head on the target's states."""

    model: DraftHead

    def __init__(self, config: DeviceDefaults, choice: DeviceChoice, path: Path, files: DraftHeadFiles) -> None:
        super().__init__(config, choice, path, files.spec.model)
        self.files, self.kind = files, files.spec.kind
        if choice.device.type != "cpu":
            self.attends_by = "torch_native"  # its steps are plain ones, whose pages the host alone knows

    def join(self, target: AnyDecoder) -> None:
        assert isinstance(target, Decoder)
        self.model = self.files.load(target, self.choice.dtype, self.choice.device, self.seed)
        target.capture = HiddenStateCapture(self.files.spec.layers)

    @property
    def _ids(self) -> Tensor | None:
        return self.model.ids

    def _running(self, target: Runner) -> tuple[Runner, DraftModelStates]:
        shadows = DraftHeadStates(plain_cache(self.config, self.pool))
        target.steps = ObservedSteps(target.steps, shadows.observe)
        runner = EagerRunner(cast(AnyDecoder, self.model), self.attention(), self.model.device)
        runner.steps = DraftHeadSteps(self.model, shadows.given, shadows.made)
        return runner, shadows


def make_draft_builder(
    config: DeviceDefaults, choice: DeviceChoice, target: ModelSpec | TransformersModelSpec, path: Path
) -> DraftBuilder | None:
    """What `Engine(draft=...)` names.

    target, path: the model that it drafts for. Raises ConfigError where it cannot.
    """
    if config.draft is None:
        return None
    mtp = config.draft == "mtp"
    where = path if mtp else resolve_model(config.draft, not config.dummy, config.load_format)
    kind = None if mtp else kind_of(where, config.load_format, not config.dummy)
    if not mtp and kind is None:
        return DraftModelBuilder(config, choice, where)
    if isinstance(target, TransformersModelSpec) or target.per_layer is not None:
        raise ConfigError(
            f"{option(config)}: the states of {target.architecture} are not kept for heads; take a draft model"
        )
    if choice.device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"{option(config)}: heads on the states of their target run on the CPU and CUDA, here: {choice.device}; "
            "take a draft model"
        )
    if mtp and config.dummy:
        raise ConfigError(
            f"{option(config)}: with dummy=True no file says what its layer for drafts is; leave one of them out"
        )
    if config.pipeline_parallel > 1:
        raise ConfigError(
            f"{config.ranks_text}, draft={str(config.draft)!r}): a head reads states of layers of other stages; take "
            "a draft model"
        )
    files = (
        open_mtp_head(where, target, config.load_format)
        if kind is None
        else open_draft_head(where, kind, target, config.load_format, not config.dummy)
    )
    if config.tensor_parallel > 1:
        files = files.scoring(target, path, config.load_format)
    return DraftHeadBuilder(config, choice, where, files)


def option(config: DeviceDefaults) -> str:
    return f"Engine(draft={str(config.draft)!r})"


def _require_same(target: Tokenizer, path: Path, draft: Tokenizer, draft_path: Path, name: str) -> None:
    """Raises ConfigError where a token does not mean the same in both vocabularies."""
    ours, theirs = target.token_bytes, draft.token_bytes
    if len(ours) != len(theirs):
        raise ConfigError(
            f"{name}: {draft_path} has a vocabulary of {len(theirs)} tokens, {path} one of {len(ours)}; a draft model "
            "needs the target's tokenizer"
        )
    if (
        other := next((token for token, both in enumerate(zip(ours, theirs, strict=True)) if both[0] != both[1]), None)
    ) is not None:
        raise ConfigError(
            f"{name}: token {other} is {theirs[other]!r} in {draft_path} and {ours[other]!r} in {path}; a draft model "
            "needs the target's tokenizer"
        )
