"""Whether the engine's options go together, and those that are more than a number or a word are valid."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.argument_checks import check_whole, shown
from ..errors import ConfigError
from ..quantization.weight_forms import CALIBRATED
from ..speculative.speculation_options import parse_speculation
from .engine_options import options_of

if TYPE_CHECKING:
    from .engine_config import EngineConfig

BATCH_DEPENDENT = ("flashinfer", "torch_native")  # attention whose bits depend on the other sequences of a step


def check(config: EngineConfig) -> None:
    """See `EngineConfig.validate`."""
    for name, kind, row in options_of(config):
        row.check(name, kind, getattr(config, name))
    _check_attention(config)
    _check_drafts(config)
    _check_ranks(config)
    _check_latents(config)
    _check_experts(config)
    _check_adapters(config)
    _check_calibration(config)
    _check_json_options(config)
    _check_chat_template(config)


def _check_attention(config: EngineConfig) -> None:
    if config.deterministic and config.attention in BATCH_DEPENDENT:
        raise ConfigError(
            f"Engine(deterministic=True, attention={config.attention!r}): its sums depend on the other sequences of a "
            "step; use attention='auto', which takes 'triton' on a GPU and 'cpu' on the CPU"
        )


def _check_drafts(config: EngineConfig) -> None:
    drafting = parse_speculation(config.speculation)
    if config.draft is not None and config.run_ahead:
        raise ConfigError(
            "Engine(run_ahead=True, draft=...): a draft model drafts after tokens that are known, before each step; "
            "leave one of them out"
        )
    if drafting is not None and drafting.exact and not config.deterministic:
        raise ConfigError(
            f"Engine(speculation={shown(config.speculation)}): the same bits need deterministic=True as well, as "
            "several tokens in a step round otherwise "
            "than one; take that, or speculation='auto'"
        )
    if config.draft is not None and (drafting is None or not isinstance(config.draft, str | Path)):
        raise ConfigError(
            f"Engine(draft={shown(config.draft)}): must be 'mtp' or the directory or name of a model or head, and "
            "needs speculation='auto'"
        )
    if isinstance(config.draft, str) and (
        not config.draft.strip() or (config.draft != "mtp" and config.draft.lower() == "mtp")
    ):
        raise ConfigError(
            f"Engine(draft={shown(config.draft)}): must be 'mtp', exactly so, or the directory or name of a model or "
            "head; None for no draft model"
        )


def _check_ranks(config: EngineConfig) -> None:
    if config.ranks == 1:
        return
    names = config.ranks_text
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(
            f"{names}): this process is a rank of torchrun's, which would run the program once on each: start it by "
            "itself, the engine starts its ranks"
        )
    wrong = [
        f"{name}={shown(getattr(config, name))}"
        for name, plain in (("expert_memory", "device"), ("implementation", "auto"))
        if getattr(config, name) not in (plain, "sgl")
    ]
    if wrong:
        raise ConfigError(f"{names}, {', '.join(wrong)}): not with several ranks; leave one of them out")
    if config.activations != "dynamic":
        raise ConfigError(
            f"{names}, activations={config.activations!r}): no calibration with several ranks; leave activations at "
            "'dynamic'"
        )
    if config.is_calibrated:
        raise ConfigError(
            f"{names}, weights={config.weights!r}): no calibration with several ranks: run sgl quantize MODEL OUT "
            f"--weights {config.weights} --calibration FILE, "
            f"and open OUT with {config.parts}"
        )


def _check_latents(config: EngineConfig) -> None:
    if config.by_rows and config.tensor_parallel == 1:
        raise ConfigError(
            "Engine(latent_attention='rows') shares rows out among the ranks of tensor_parallel, here 1: take "
            "tensor_parallel=2 or more, or leave it out"
        )


def _check_experts(config: EngineConfig) -> None:
    if not config.expert_parallel:
        more = [
            f"{name}={getattr(config, name)}"
            for name, plain in (("redundant_experts", 0), ("rebalance_every", None), ("expert_nodes", 1))
            if getattr(config, name) != plain
        ]
        if more:
            raise ConfigError(
                f"Engine({', '.join(more)}) is about experts that are whole on ranks: take expert_parallel=True as "
                "well, or leave it out"
            )
        return
    if config.tensor_parallel == 1:
        raise ConfigError(
            "Engine(expert_parallel=True) shares experts out among the ranks of tensor_parallel, here 1: take "
            "tensor_parallel=2 or more"
        )
    if config.pipeline_parallel > 1:
        raise ConfigError(f"{config.ranks_text}, expert_parallel=True): not with stages; leave one of them out")
    if config.tensor_parallel % config.expert_nodes:
        raise ConfigError(
            f"Engine(tensor_parallel={config.tensor_parallel}, expert_nodes={config.expert_nodes}): ranks cannot be "
            "shared out among so many; take a number that divides them"
        )


def _check_adapters(config: EngineConfig) -> None:
    slots = config.adapter_slots
    if not (slots is None or isinstance(slots, Mapping) or (isinstance(slots, int) and not isinstance(slots, bool))):
        raise ConfigError(
            f"Engine(adapter_slots={shown(slots)}): must be a number, or numbers by rank such as {{16: 8}}"
        )
    for rank, count in config.slots_by_rank.items():
        check_whole(f"Engine(adapter_slots={shown(slots)}): a rank", rank, 1, 1024)
        check_whole(f"Engine(adapter_slots={shown(slots)}): a number of slots", count, 0, 4096)
    if config.adapters is not None and not (
        isinstance(config.adapters, Mapping) and all(isinstance(path, str | Path) for path in config.adapters.values())
    ):
        raise ConfigError(
            f"Engine(adapters={shown(config.adapters)}): must be directories by name, such as {{'sql': 'adapters/sql'}}"
        )
    if config.by_rows and (config.adapters or any(config.slots_by_rank.values())):
        raise ConfigError(
            "Engine(latent_attention='rows'): no adapters are added to rows that ranks share out: take "
            "latent_attention='heads', or leave adapters and adapter_slots out"
        )


def _check_calibration(config: EngineConfig) -> None:
    if config.activations != "dynamic" and config.weights != "fp8":
        raise ConfigError(
            f"Engine(activations={config.activations!r}) is for the products of weights='fp8', here: "
            f"weights={config.weights!r}; leave it at 'dynamic'"
        )
    option = f"weights={config.weights!r}" if config.weights in CALIBRATED else f"activations={config.activations!r}"
    if config.is_calibrated and config.calibration is None:
        raise ConfigError(
            f"Engine({option}) needs texts to calibrate by: give calibration=[...] with texts or conversations like "
            "those that the "
            "model is for, the path of a .txt or .jsonl file of them, or a function that runs programs on the engine "
            "it gets"
        )
    if config.calibration is not None and not config.is_calibrated:
        raise ConfigError(
            f"Engine(calibration=...): nothing uses it with weights={config.weights!r}; leave it out, or take "
            "weights='int4_gptq'"
        )


def _check_json_options(config: EngineConfig) -> None:
    from sgl.grammars import GrammarError, SchemaOptions

    if not isinstance(config.json_options or {}, dict) or not all(
        isinstance(name, str) for name in config.json_options or {}
    ):
        raise ConfigError(
            f"Engine(json_options={shown(config.json_options)}): must be a dict of options by their names, such as "
            f"{{'order': 'any'}}"
        )
    try:
        SchemaOptions.of(config.json_options or {})
    except GrammarError as error:
        raise ConfigError(f"Engine(json_options={config.json_options!r}): {error}") from error


def _check_chat_template(config: EngineConfig) -> None:
    from ..text.chat_templates.chat_template_files import given_source

    try:
        if config.chat_template is not None:
            given_source(config.chat_template)
    except ConfigError as error:
        raise ConfigError(f"Engine(chat_template={str(config.chat_template)[:80]!r}): {error}") from error
