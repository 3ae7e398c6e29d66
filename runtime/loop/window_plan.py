"""How the KV memory is shared by layers that see all tokens and layers that see a window only."""

from __future__ import annotations

from dataclasses import dataclass

from ..attention import AttentionLayout
from ..cache.window_pages import span
from ..errors import ConfigError
from .config import Resolved, parse_memory

TYPICAL = 8192  # tokens of a text, or the context where that is shorter
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """layout: where windowed layers lie apart; where `tokens` is 0 as the model has it.

    tokens: how many of them windowed layers have rows for.  why: nothing lies apart though there are such layers.
    """

    layout: AttentionLayout
    tokens: int = 0
    why: str | None = None

    def told(self) -> str | None:
        """For people; None: no layer sees less than the context."""
        if not self.tokens:
            return self.why and f"layers with a window keep all tokens: {self.why}"
        count, reach = len(self.layout.windowed), self.layout.reach
        return f"{count} of {len(self.layout.attending)} layers see at most {reach:,} tokens, and have rows for {self.tokens:,}"


def windows_refused(layout: AttentionLayout, config: Resolved, states: bool, gpu: bool = False) -> str | None:
    """Why this engine keeps all tokens in all layers, though some see a window only."""
    if states:
        return "the model has layers with states beside them"
    if config.pipeline_parallel > 1 or (config.ranks > 1 and not gpu):
        return "stages and ranks on CPUs keep all tokens in all layers"
    if parse_memory(config.host_kv, "host_kv"):
        return "host_kv keeps whole pages"
    if config.window_tokens is not None and config.kv_tokens is not None and config.window_tokens >= config.kv_tokens:
        return f"window_tokens={config.window_tokens} is no less than kv_tokens={config.kv_tokens}"
    if not layout.windowed:
        return "some of them share keys and values with layers that see all"
    return None


def share_of(layout: AttentionLayout, config: Resolved, context: int) -> float:
    """Of all tokens those that windowed layers have rows for, where it is not said.

    Texts of a typical length fill both kinds of layers at once: each holds its window and is otherwise cached for
    the layers that see all. A quarter at least, for the ends of many short texts.
    """
    if config.window_tokens is not None and config.kv_tokens is not None:
        return min(1.0, config.window_tokens / config.kv_tokens)
    least = 0.0 if config.kv_tokens is None else least_tokens(layout, config) / config.kv_tokens
    return min(1.0, max(LEAST_SHARE, least, span(layout.reach, config.page_size) / min(context, TYPICAL)))


def least_tokens(layout: AttentionLayout, config: Resolved) -> int:
    """So that beside pins, which may hold half, one sequence gets on by whole steps."""
    return 2 * (span(layout.reach, config.page_size) + config.step_tokens + 2 * config.page_size)


def plan_windows(layout: AttentionLayout, config: Resolved, share: float, tokens: int) -> WindowPlan:
    """Of a KV pool of so many tokens. layout: as `apart` gives it. Raises ConfigError for too small a `window_tokens`."""
    least = least_tokens(layout, config)
    if config.window_tokens is not None and config.window_tokens < least:
        raise ConfigError(f"Engine(window_tokens={config.window_tokens}): windows of {layout.reach} tokens and steps of {config.step_tokens} need {least} at least")
    wanted = config.window_tokens or int(share * tokens)
    if wanted < least and config.kv_tokens is not None:
        wanted = least
    wanted = -(-wanted // config.page_size) * config.page_size
    if least <= wanted < tokens:
        return WindowPlan(layout, wanted)
    return WindowPlan(AttentionLayout.of(layout.layers), why=f"a pool of {tokens:,} tokens gains nothing from windows of {layout.reach:,} kept apart")


def check_options(config: Resolved, layout: AttentionLayout) -> None:
    """Raises ConfigError for `window_tokens` without what it goes with."""
    if config.window_tokens is None:
        return
    if config.kv_tokens is None:
        raise ConfigError(f"Engine(window_tokens={config.window_tokens}): give kv_tokens too, the tokens of the layers that see all")
    if all(layer.reach is None for layer in layout.attending):
        raise ConfigError(f"Engine(window_tokens={config.window_tokens}): no layer of this model has a window; leave it out")
