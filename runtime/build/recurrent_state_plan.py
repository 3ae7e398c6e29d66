"""How many states an engine has room for, of models whose layers keep some instead of keys and values."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from ..cache.recurrent_state_memory import StateShapes, bytes_per_state
from ..cache.recurrent_state_slots import FIRST_SLOT
from ..errors import ConfigError
from ..memory.memory_sizes import free_memory, parse_memory
from . import memory_plan
from .engine_config import DeviceDefaults

log = logging.getLogger("sgl.runtime")

EACH = 4  # states of a running sequence, with a snapshot after its prompt
LEAST = 4


def plan_with_states(
    plan: memory_plan.MemoryPlan,
    config: DeviceDefaults,
    shapes: StateShapes,
    bytes_per_token: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[memory_plan.MemoryPlan, int]:
    """The plan with the states, and how many there are: as asked for, or a share of what keys and values would take.

    Raises ConfigError for options that do not go with the model, and where there is no room.
    """
    if not shapes:
        _refuse_options(config)
        return plan, 0
    if parse_memory(config.host_kv, "host_kv"):
        raise ConfigError(
            f"Engine(host_kv={config.host_kv!r}): main memory keeps keys and values only, and this model has layers "
            "with states; leave it out"
        )
    each = bytes_per_state(shapes, dtype)
    count = _count(plan, config, each, bytes_per_token, device) if config.states is None else config.states
    plan = replace(plan, states=(count + FIRST_SLOT) * each)
    if count < LEAST or plan.taken > (plan.free if device.type == "cuda" else plan.total):
        raise ConfigError(
            f"{count} states of {each:,} bytes ({plan}): at least {LEAST} are needed and must have room; set states to "
            "what fits, or raise "
            "memory, kv_memory or state_share"
        )
    return plan, count


def state_places_for(config: DeviceDefaults, states: int) -> DeviceDefaults:
    """With no more running sequences than have a state each next to as many that are pinned."""
    most = states // 2
    if not states or config.max_running <= most:
        return config
    log.warning("max_running is %d, not %d: there are %d states", most, config.max_running, states)
    return replace(config, max_running=most)


def _count(
    plan: memory_plan.MemoryPlan, config: DeviceDefaults, each: int, per_token: int, device: torch.device
) -> int:
    """What the running sequences and the snapshots of a full cache need, within the share."""
    most = memory_plan.GPU_TOKENS if device.type == "cuda" else memory_plan.CPU_TOKENS
    if config.kv_tokens is not None:
        return EACH * config.max_running + config.kv_tokens // config.state_every
    budget = max(0, _budget(plan, config))
    tokens = min(most, budget // per_token) if per_token else most
    share = int((config.state_share if per_token else 1.0) * budget) // each - FIRST_SLOT
    return min(EACH * config.max_running + tokens // config.state_every, share)


def _budget(plan: memory_plan.MemoryPlan, config: DeviceDefaults) -> int:
    """Bytes for keys, values and states together."""
    if config.kv_memory is not None:
        return parse_memory(config.kv_memory)
    if config.memory is not None:
        return int(config.memory * plan.free) - plan.taken
    return int(memory_plan.CPU_SHARE * free_memory())


def _refuse_options(config: DeviceDefaults) -> None:
    if config.states is not None:
        raise ConfigError(f"Engine(states={config.states}): no layer of this model keeps a state; leave it out")
