"""The options of the engine by name, for type checkers, editors and help()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from .engine_config import EngineConfig

F = TypeVar("F", bound=Callable[..., Any])


class EngineOptions(TypedDict, total=False):
    """The options of `Engine`: the fields of `EngineConfig`, whose docstring explains them."""

    dtype: str
    device: str
    threads: int | None
    context: int | None
    page_size: int
    kv_tokens: int | None
    kv_memory: int | str | None
    host_kv: int | str
    kv_dtype: str
    window_tokens: int | None
    states: int | None
    state_share: float
    state_every: int | None
    memory: float | None
    expert_memory: int | str
    adapters: Mapping[str, str | Path] | None
    adapter_slots: int | Mapping[int, int] | None
    adapter_extras: int | str
    adapter_memory: int | str
    weights: str
    calibration: Any
    activations: str
    load_format: str
    step_tokens: int | None
    prompt_seconds: float | None
    max_running: int | None
    attention: str
    graphs: bool
    run_ahead: bool | None
    deterministic: bool
    speculation: str | bool | dict[str, Any]
    draft: str | Path | None
    jump_forward: bool
    json_options: dict[str, Any] | None
    chat_template: str | None
    implementation: str
    trust_remote_code: bool
    dummy: bool
    seed: int | None
    strict: bool
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: bool
    redundant_experts: int
    rebalance_every: int | None
    expert_nodes: int
    latent_attention: str
    replicas: int
    process: bool
    heartbeat: float | None
    grammar_process: bool | None
    poison_freed: bool


def shows_options(function: F) -> F:
    """Give a function that takes `**options` of `EngineConfig` a signature that has each by name, with its default."""
    signature = inspect.signature(function)
    plain = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(EngineConfig)
    ]
    function.__signature__ = signature.replace(parameters=[*plain, *named])  # type: ignore[attr-defined]
    return function
