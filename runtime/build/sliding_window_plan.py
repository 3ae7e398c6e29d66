"""How the KV memory is shared by layers that see all tokens and layers that see a window only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..attention import AttentionLayout
from ..cache.window_pages import span
from ..errors import ConfigError
from ..memory.memory_sizes import parse_memory
from .engine_config import DeviceDefaults

TYPICAL = 8192  # tokens of a text, or the context where that is shorter
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class SlidingWindowPlan:
    """layout: with windowed layers stored apart, of rank 0's part of the model; the model's own where `tokens` is 0.

    tokens: how many of them windowed layers have rows for.  why: nothing is stored apart though there are such layers.
    reach: tokens that these see at most.  near: how many of `attending` layers they are, of all stages on GPUs.
    """

    layout: AttentionLayout
    tokens: int = 0
    why: str | None = None
    reach: int = 0
    near: int = 0
    attending: int = 0

    def describe(self) -> str | None:
        """For people; None: no layer sees less than the context."""
        if not self.tokens:
            return self.why and f"layers with a window keep all tokens: {self.why}"
        return (
            f"{self.near} of {self.attending} layers see at most {self.reach:,} tokens, and have rows for "
            f"{self.tokens:,}"
        )


def is_window_shorter(layout: AttentionLayout, context: int) -> bool:
    """Whether some layer does not see all of the context."""
    return any(layer.reach is not None and layer.reach < context for layer in layout.attending)


def windows_refusal(
    layouts: Sequence[AttentionLayout], config: DeviceDefaults, context: int, states: bool, gpu: bool
) -> str | None:
    """Why this engine keeps all tokens in all layers, though some see a window only. layouts: as for `plan_windows`."""
    if states:
        return "the model has layers with states as well"
    if config.ranks > 1 and not gpu:
        return "ranks on CPUs keep all tokens in all layers"
    if parse_memory(config.host_kv, "host_kv"):
        return "host_kv keeps whole pages"
    if config.window_tokens is not None and config.kv_tokens is not None and config.window_tokens >= config.kv_tokens:
        return f"window_tokens={config.window_tokens} is no less than kv_tokens={config.kv_tokens}"
    if any(is_window_shorter(layout, context) and not layout.windowed for layout in layouts):
        return "some of them share keys and values with layers that see all"
    return None


def share_of(reach: int, config: DeviceDefaults, context: int) -> float:
    """Of all tokens those that windowed layers have rows for, where it is not said.

    Texts of a typical length fill both kinds of layers at once: each holds its window and is otherwise cached for the
    layers that see all. A quarter at least, for the ends of many short texts.
    """
    if config.window_tokens is not None and config.kv_tokens is not None:
        return min(1.0, config.window_tokens / config.kv_tokens)
    least = 0.0 if config.kv_tokens is None else least_tokens(reach, config) / config.kv_tokens
    return min(1.0, max(LEAST_SHARE, least, span(reach, config.page_size) / min(context, TYPICAL)))


def least_tokens(reach: int, config: DeviceDefaults) -> int:
    """So that, next to pins, which may hold half, one sequence gets on by whole steps."""
    return 2 * (span(reach, config.page_size) + config.step_tokens + 2 * config.page_size)


def reach_of(layouts: Sequence[AttentionLayout]) -> int:
    return max(layout.reach for layout in layouts)


def plan_windows(
    layouts: Sequence[AttentionLayout], config: DeviceDefaults, share: float, tokens: int
) -> SlidingWindowPlan:
    """Of KV pools of so many tokens.

    layouts: as `apart` returns them, of what is stored on each GPU, rank 0's first. Raises ConfigError for too small a
    `window_tokens`.
    """
    reach = reach_of(layouts)
    least = least_tokens(reach, config)
    if config.window_tokens is not None and config.window_tokens < least:
        raise ConfigError(
            f"Engine(window_tokens={config.window_tokens}): windows of {reach} tokens and steps of "
            f"{config.step_tokens} need {least} at least"
        )
    wanted = config.window_tokens or int(share * tokens)
    if wanted < least and config.kv_tokens is not None:
        wanted = least
    wanted = -(-wanted // config.page_size) * config.page_size
    if least <= wanted < tokens:
        near, attending = (
            sum(map(len, counted))
            for counted in ([each.windowed for each in layouts], [each.attending for each in layouts])
        )
        return SlidingWindowPlan(layouts[0], wanted, None, reach, near, attending)
    return SlidingWindowPlan(
        AttentionLayout.of(layouts[0].layers),
        why=f"a pool of {tokens:,} tokens gains nothing from windows of {reach:,} kept apart",
    )


def check_options(config: DeviceDefaults, layouts: Sequence[AttentionLayout]) -> None:
    """Raises ConfigError for `window_tokens` without what it goes with."""
    if config.window_tokens is None:
        return
    if config.kv_tokens is None:
        raise ConfigError(
            f"Engine(window_tokens={config.window_tokens}): give kv_tokens too, the tokens of the layers that see all"
        )
    if all(layer.reach is None for layout in layouts for layer in layout.attending):
        raise ConfigError(
            f"Engine(window_tokens={config.window_tokens}): no layer of this model has a window; leave it out"
        )
