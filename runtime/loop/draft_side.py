"""A draft model beside its target: checked, loaded, given memory, and made a drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..attention import AttentionBackend, attention_backend
from ..cache.pools import Pool
from ..errors import ConfigError
from ..executor.device import DeviceChoice
from ..loading import describe, load_model, resolve_model
from ..models.decoder import Decoder
from ..models.generic import GenericModel
from ..models.spec import Model
from ..speculative.control import Control
from ..speculative.draft_pace import DraftPace
from ..speculative.model_drafter import ModelDrafter
from ..speculative.shadow import Shadows
from ..text.tokenizer import Tokenizer
from . import memory
from .caches import plain_cache
from .config import Resolved
from .metrics import Stats
from .runners import make_runner
from .text_side import load_tokenizer


class DraftSide:
    """The steps of building it, in order: described (at once), `load`, `take`, `drafter`.

    per_token: bytes of its keys and values, which lie in a pool of as many tokens as the target's.
    """

    def __init__(self, config: Resolved, choice: DeviceChoice) -> None:
        assert config.draft is not None
        self.config, self.choice, self.name = config, choice, f"Engine(draft={str(config.draft)!r})"
        self.path = resolve_model(config.draft, not config.dummy, config.load_format)
        self.description = self._described(self.path)
        self.per_token = self.description.attention.bytes_per_slot(choice.dtype)
        self.model: Decoder
        self.pool: Pool
        self.made: ModelDrafter | None = None

    def _described(self, path: Path) -> Model:
        found = describe(path, None, "auto", False)
        if isinstance(found, GenericModel):
            raise ConfigError(f"{self.name}: {found.architecture} runs by transformers' own implementation; a draft model must be of a family of sgl's")
        if found.states:
            raise ConfigError(f"{self.name}: {found.architecture} has recurrent layers, whose state behind a dropped guess would be wrong; take another draft model")
        return found

    def load(self, target: Tokenizer, path: Path) -> None:
        """Its weights. target, path: the tokenizer that it must have too, and whose. Raises ConfigError for another one."""
        _require_same(target, path, load_tokenizer(self.path), self.path, self.name)
        seed = (self.config.seed or 0) if self.config.dummy else None
        self.model = load_model(self.path, self.choice.dtype, self.choice.device, seed, load_format=self.config.load_format)

    def planned(self, plan: memory.MemoryPlan) -> memory.MemoryPlan:
        """With what it takes beside its keys and values; on a GPU the weights are in what was measured."""
        if self.choice.device.type == "cuda":
            return replace(plan, reserved=plan.reserved + memory.ATTENTION + (memory.GRAPHS if self.config.graphs else 0))
        return replace(plan, weights=plan.weights + self.model.weight_bytes)

    def take(self, slots: int) -> Pool:
        """The memory of its keys and values."""
        self.pool = self.description.attention.pool(slots, self.choice.dtype, self.choice.device)
        return self.pool

    def attention(self) -> AttentionBackend:
        """Built anew for a pool that came back from a sleep."""
        config = self.config
        return attention_backend(
            "auto", self.pool, self.description.attention, page_size=config.page_size, max_running=config.max_running,
            context=self.description.max_position, deterministic=config.deterministic, dtype=self.model.dtype,
        )  # fmt: skip

    def drafter(self, control: Control, stats: Stats, tokens: int) -> ModelDrafter:
        """tokens: of the target's vocabulary."""
        runner = make_runner(self.model, self.attention(), replace(self.config, run_ahead=False), self.choice, self.description.max_position)
        shadows = Shadows(plain_cache(self.config, self.pool))
        size = min(tokens, self.description.vocab_size)
        self.made = ModelDrafter(runner, shadows, DraftPace(control), stats, size, self.description.max_position)
        return self.made

    def let_go(self) -> None:
        """Of all that is stored, and of what it computes with, until `restore`."""
        if self.made is not None:
            self.made.forget()
            self.made.runner.release()

    def restore(self) -> None:
        if self.made is not None:
            self.made.runner.restore(self.attention())

    def told(self) -> dict[str, Any]:
        """For `Engine.info`."""
        return {
            "path": str(self.path), "architecture": self.description.architecture, "parameters": self.model.parameter_count,
            "weight_bytes": self.model.weight_bytes, "kv_tokens": self.pool.slots - self.config.page_size, "kv_bytes": self.pool.bytes,
        }  # fmt: skip


def _require_same(target: Tokenizer, path: Path, draft: Tokenizer, draft_path: Path, name: str) -> None:
    """Raises ConfigError where a token does not mean the same in both vocabularies."""
    ours, theirs = target.token_bytes, draft.token_bytes
    if len(ours) != len(theirs):
        raise ConfigError(f"{name}: {draft_path} has a vocabulary of {len(theirs)} tokens, {path} one of {len(ours)}; a draft model needs the target's tokenizer")
    if (other := next((token for token, both in enumerate(zip(ours, theirs, strict=True)) if both[0] != both[1]), None)) is not None:
        raise ConfigError(
            f"{name}: token {other} is {theirs[other]!r} in {draft_path} and {ours[other]!r} in {path}; a draft model needs the target's tokenizer"
        )
