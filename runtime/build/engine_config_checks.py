"""Whether the engine's options are valid, each by itself and in combination with the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.argument_checks import WORD, check_real, check_whole, shown
from ..errors import ConfigError
from ..memory.memory_sizes import parse_memory
from ..quantization import ACTIVATIONS
from ..quantization.online_quantization import CALIBRATED
from ..speculative.speculation_options import parse_speculation
from .option_aliases import value_meant

if TYPE_CHECKING:
    from .engine_config import EngineConfig

CHOICES = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "kv_dtype": ("auto", "fp8"),
    "weights": ("auto", "fp8", "fp8_block", "int8", "int4", "int4_hqq", "int4_gptq", "mxfp4", "nvfp4"),
    "activations": tuple(ACTIVATIONS),
    "load_format": ("auto", "pt", "sharded_state"),
    "implementation": ("auto", "sgl", "transformers"),
    "latent_attention": ("heads", "rows"),
}
# nothing is chosen for who leaves them open
COUNTS = ("page_size", "tensor_parallel", "pipeline_parallel", "replicas", "expert_nodes")
MOST_THREADS = 4096  # of a process: far more than that, and the libraries below end it
BATCH_DEPENDENT = ("flashinfer", "torch_native")  # attention whose bits depend on the other sequences of a step


def check(asked: EngineConfig) -> None:
    """See `EngineConfig.validate`."""
    _check_counts(asked)
    _check_words(asked)
    _check_drafts(asked)
    _check_shares(asked)
    _check_sizes(asked)
    _check_ranks(asked)
    _check_latents(asked)
    _check_experts(asked)
    _check_adapters(asked)
    _check_calibration(asked)
    _check_json_options(asked)
    _check_chat_template(asked)


def _check_counts(asked: EngineConfig) -> None:
    for name in (
        "page_size",
        "step_tokens",
        "max_running",
        "threads",
        "context",
        "kv_tokens",
        "window_tokens",
        "states",
        "state_every",
        "tensor_parallel",
        "pipeline_parallel",
        "replicas",
        "rebalance_every",
        "expert_nodes",
    ):
        value = getattr(asked, name)
        if (value is not None or name in COUNTS) and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < WORD
        ):
            raise ConfigError(f"Engine({name}={shown(value)}): must be a positive whole number")
    if asked.threads is not None and asked.threads > MOST_THREADS:
        raise ConfigError(
            f"Engine(threads={asked.threads}): a process takes {MOST_THREADS} at most; None takes as many as there are "
            "cores"
        )
    if asked.seed is not None:
        check_whole("Engine(seed=...)", asked.seed, -WORD, 2 * WORD - 1)


def _check_words(asked: EngineConfig) -> None:
    if not isinstance(asked.attention, str):
        raise ConfigError(f"Engine(attention={shown(asked.attention)}): must be 'auto' or the name of a backend")
    for name, choices in CHOICES.items():
        if (value := getattr(asked, name)) not in choices:
            other = value_meant(name, value)
            raise ConfigError(
                f"Engine({name}={shown(value)}): must be {', '.join(choices[:-1])} or "
                f"{choices[-1]}{f'; {other}' if other else ''}"
            )
    for name in (
        "graphs",
        "deterministic",
        "jump_forward",
        "dummy",
        "strict",
        "process",
        "trust_remote_code",
        "poison_freed",
        "expert_parallel",
    ):
        if not isinstance(value := getattr(asked, name), bool):
            raise ConfigError(f"Engine({name}={shown(value)}): must be True or False")
    if asked.run_ahead not in (None, True, False):
        raise ConfigError(f"Engine(run_ahead={shown(asked.run_ahead)}): must be True, False or None")
    if asked.grammar_process not in (None, True, False):
        raise ConfigError(f"Engine(grammar_process={shown(asked.grammar_process)}): must be True, False or None")
    if asked.deterministic and asked.attention in BATCH_DEPENDENT:
        raise ConfigError(
            f"Engine(deterministic=True, attention={asked.attention!r}): its sums depend on the other sequences of a "
            "step; "
            "use attention='auto', which takes 'triton' on a GPU and 'cpu' on the CPU"
        )


def _check_drafts(asked: EngineConfig) -> None:
    drafting = parse_speculation(asked.speculation)
    if asked.draft is not None and asked.run_ahead:
        raise ConfigError(
            "Engine(run_ahead=True, draft=...): a draft model drafts after tokens that are known, before each step; "
            "leave one of them out"
        )
    if drafting is not None and drafting.exact and not asked.deterministic:
        raise ConfigError(
            f"Engine(speculation={shown(asked.speculation)}): the same bits need deterministic=True as well, as "
            "several tokens in a step round otherwise "
            "than one; take that, or speculation='auto'"
        )
    if asked.draft is not None and (drafting is None or not isinstance(asked.draft, str | Path)):
        raise ConfigError(
            f"Engine(draft={shown(asked.draft)}): must be 'mtp' or the directory or name of a model or head, and needs "
            "speculation='auto'"
        )
    if isinstance(asked.draft, str) and (
        not asked.draft.strip() or (asked.draft != "mtp" and asked.draft.lower() == "mtp")
    ):
        raise ConfigError(
            f"Engine(draft={shown(asked.draft)}): must be 'mtp', exactly so, or the directory or name of a model or "
            "head; None for no draft model"
        )


def _check_shares(asked: EngineConfig) -> None:
    if asked.memory is not None and (not isinstance(asked.memory, int | float) or not 0 < asked.memory <= 1):
        raise ConfigError(f"Engine(memory={shown(asked.memory)}): must be a share above 0 and up to 1, such as 0.8")
    if (
        isinstance(asked.state_share, bool)
        or not isinstance(asked.state_share, int | float)
        or not 0 < asked.state_share < 1
    ):
        raise ConfigError(
            f"Engine(state_share={shown(asked.state_share)}): must be a share above 0 and below 1, such as 0.5"
        )
    if asked.prompt_seconds is not None:
        check_real("Engine(prompt_seconds=...), 0 for no limit,", asked.prompt_seconds, 0, 1e9)
    if asked.heartbeat is not None:
        check_real("Engine(heartbeat=...), None for no limit,", asked.heartbeat, 0.1, 1e9)


def _check_sizes(asked: EngineConfig) -> None:
    if asked.kv_memory is not None:
        parse_memory(asked.kv_memory)
    if parse_memory(asked.host_kv, "host_kv") < 0:
        raise ConfigError(f"Engine(host_kv={shown(asked.host_kv)}): must be a size such as '4GB', or 0 for none")
    if (most := asked.expert_budget) is not None and most < 0:
        raise ConfigError(
            f"Engine(expert_memory={shown(asked.expert_memory)}): must be 'device', 'host', or a size such as '40GB'"
        )


def _check_ranks(asked: EngineConfig) -> None:
    if asked.ranks == 1:
        return
    names = asked.ranks_asked
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(
            f"{names}): this process is a rank of torchrun's, which would run the program once on each: start it by "
            "itself, the engine starts its ranks"
        )
    wrong = [
        f"{name}={shown(getattr(asked, name))}"
        for name, plain in (("expert_memory", "device"), ("implementation", "auto"))
        if getattr(asked, name) not in (plain, "sgl")
    ]
    if wrong:
        raise ConfigError(f"{names}, {', '.join(wrong)}): not with several ranks; leave one of them out")
    if asked.activations != "dynamic":
        raise ConfigError(
            f"{names}, activations={asked.activations!r}): no calibration with several ranks; leave activations at "
            "'dynamic'"
        )
    if asked.is_calibrated:
        raise ConfigError(
            f"{names}, weights={asked.weights!r}): no calibration with several ranks: run sgl quantize MODEL OUT "
            f"--weights {asked.weights} --calibration FILE, "
            f"and open OUT with {asked.parts}"
        )


def _check_latents(asked: EngineConfig) -> None:
    if asked.by_rows and asked.tensor_parallel == 1:
        raise ConfigError(
            "Engine(latent_attention='rows') shares rows out among the ranks of tensor_parallel, here 1: take "
            "tensor_parallel=2 or more, or leave it out"
        )


def _check_experts(asked: EngineConfig) -> None:
    check_whole("Engine(redundant_experts=...)", asked.redundant_experts, 0, WORD)
    if not asked.expert_parallel:
        more = [
            f"{name}={getattr(asked, name)}"
            for name, plain in (("redundant_experts", 0), ("rebalance_every", None), ("expert_nodes", 1))
            if getattr(asked, name) != plain
        ]
        if more:
            raise ConfigError(
                f"Engine({', '.join(more)}) is about experts that are whole on ranks: take expert_parallel=True as "
                "well, or leave it out"
            )
        return
    if asked.tensor_parallel == 1:
        raise ConfigError(
            "Engine(expert_parallel=True) shares experts out among the ranks of tensor_parallel, here 1: take "
            "tensor_parallel=2 or more"
        )
    if asked.pipeline_parallel > 1:
        raise ConfigError(f"{asked.ranks_asked}, expert_parallel=True): not with stages; leave one of them out")
    if asked.tensor_parallel % asked.expert_nodes:
        raise ConfigError(
            f"Engine(tensor_parallel={asked.tensor_parallel}, expert_nodes={asked.expert_nodes}): ranks cannot be "
            "shared out among so many; take a number that divides them"
        )


def _check_adapters(asked: EngineConfig) -> None:
    if parse_memory(asked.adapter_memory, "adapter_memory") < 0:
        raise ConfigError(f"Engine(adapter_memory={shown(asked.adapter_memory)}): must be a size such as '4GB'")
    if parse_memory(asked.adapter_extras, "adapter_extras") < 0:
        raise ConfigError(f"Engine(adapter_extras={shown(asked.adapter_extras)}): must be a size such as '2GB'")
    slots = asked.adapter_slots
    if not (slots is None or isinstance(slots, Mapping) or (isinstance(slots, int) and not isinstance(slots, bool))):
        raise ConfigError(
            f"Engine(adapter_slots={shown(slots)}): must be a number, or numbers by rank such as {{16: 8}}"
        )
    for rank, count in asked.slots_by_rank.items():
        check_whole(f"Engine(adapter_slots={shown(slots)}): a rank", rank, 1, 1024)
        check_whole(f"Engine(adapter_slots={shown(slots)}): a number of slots", count, 0, 4096)
    if asked.adapters is not None and not (
        isinstance(asked.adapters, Mapping) and all(isinstance(path, str | Path) for path in asked.adapters.values())
    ):
        raise ConfigError(
            f"Engine(adapters={shown(asked.adapters)}): must be directories by name, such as {{'sql': 'adapters/sql'}}"
        )
    if asked.by_rows and (asked.adapters or any(asked.slots_by_rank.values())):
        raise ConfigError(
            "Engine(latent_attention='rows'): no adapters are added to rows that ranks share out: take "
            "latent_attention='heads', or leave adapters and adapter_slots out"
        )


def _check_calibration(asked: EngineConfig) -> None:
    if asked.activations != "dynamic" and asked.weights != "fp8":
        raise ConfigError(
            f"Engine(activations={asked.activations!r}) is for the products of weights='fp8', here: "
            f"weights={asked.weights!r}; leave it at 'dynamic'"
        )
    option = f"weights={asked.weights!r}" if asked.weights in CALIBRATED else f"activations={asked.activations!r}"
    if asked.is_calibrated and asked.calibration is None:
        raise ConfigError(
            f"Engine({option}) needs texts to calibrate by: give calibration=[...] with texts or conversations like "
            "those that the "
            "model is for, the path of a .txt or .jsonl file of them, or a function that runs programs on the engine "
            "it gets"
        )
    if asked.calibration is not None and not asked.is_calibrated:
        raise ConfigError(
            f"Engine(calibration=...): nothing uses it with weights={asked.weights!r}; leave it out, or take "
            "weights='int4_gptq'"
        )


def _check_json_options(asked: EngineConfig) -> None:
    from sgl.grammars import GrammarError, SchemaOptions

    if not isinstance(asked.json_options or {}, dict) or not all(
        isinstance(name, str) for name in asked.json_options or {}
    ):
        raise ConfigError(
            f"Engine(json_options={shown(asked.json_options)}): must be a dict of options by their names, such as "
            f"{{'order': 'any'}}"
        )
    try:
        SchemaOptions.of(asked.json_options or {})
    except GrammarError as error:
        raise ConfigError(f"Engine(json_options={asked.json_options!r}): {error}") from error


def _check_chat_template(asked: EngineConfig) -> None:
    from ..text.chat_templates.chat_template_files import given_source

    try:
        if asked.chat_template is not None:
            given_source(asked.chat_template)
    except ConfigError as error:
        raise ConfigError(f"Engine(chat_template={str(asked.chat_template)[:80]!r}): {error}") from error
