"""`sgl models`: the models that load, and what one of them needs and how it runs on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .model_arguments import add_model_arguments, model_and_options

if TYPE_CHECKING:
    from sgl.runtime.build.memory_estimate import MemoryEstimate
    from sgl.runtime.build.sharding_plan import ShardingPlan, ShardingPlans
    from sgl.runtime.models.describe.family_listing import FamilyFile
    from sgl.runtime.models.expected_executors import LayerExecutorChoice

WIDTH, INDENT = 120, 14
_ABOUT = """\
Without a model: lists the families that load, and which code runs each kind of layer on this machine.
With a model: describes it, the memory it needs and how its layers run. Reads only the headers of weight files.

  sgl models
  sgl models path/to/model dtype=bfloat16 context=8192
  sgl models hub/id weights=fp8 --json                    fetches only the small files of a hub id
  sgl models path/to/model --gpus 4 --gpu-memory 80       what each of four GPUs would hold, for every way to shard it
"""


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "models", help="list the models that load, or show what one needs and how it runs here", description=_ABOUT
    )
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="show how the model can be sharded over N GPUs, and which way to choose"
    )
    parser.add_argument(
        "--gpu-memory", type=float, metavar="GB", help="memory of each GPU (default: that of this machine's)"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Status 1 where the model would not load."""
    from sgl.runtime.errors import ConfigError, RuntimeFailure

    try:
        name, engine_options = model_and_options(options.words)
        if name is None and (options.gpus, options.gpu_memory) != (None, None):
            raise ConfigError("--gpus and --gpu-memory need a model")
        if options.gpus is None and options.gpu_memory is not None:
            raise ConfigError("--gpu-memory needs --gpus: the number of GPUs")
        if name is None:
            return _list(engine_options, options.json)
        return (
            _tell(name, engine_options, options)
            if options.gpus is None
            else _print_sharding(name, engine_options, options)
        )
    except BrokenPipeError:
        raise  # the reader of the output has gone: not an error of the command
    except (RuntimeFailure, OSError) as error:
        print(f"sgl models: {error}", file=sys.stderr)
        return 1


def _tell(name: str, engine_options: dict[str, Any], options: argparse.Namespace) -> int:
    from sgl.runtime.build.engine_config import EngineConfig
    from sgl.runtime.build.memory_estimate import estimate_memory
    from sgl.runtime.loading import resolve_model

    config = EngineConfig.from_options(engine_options)
    found = estimate_memory(resolve_model(name, False, config.load_format), config)
    if options.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _print(model_summary(found))
    return 0 if found.loads else 1


def _print_sharding(name: str, engine_options: dict[str, Any], options: argparse.Namespace) -> int:
    from sgl.runtime.build.engine_config import EngineConfig
    from sgl.runtime.build.sharding_plan import on_gpus, read
    from sgl.runtime.loading import resolve_model

    config = EngineConfig.from_options(engine_options)
    found = read(resolve_model(name, False, config.load_format), config, *on_gpus(options.gpus, options.gpu_memory))
    if options.json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        _print(sharding_summary(found))
    return 0 if found.chosen is not None else 1


def _list(engine_options: dict[str, Any], as_json: bool) -> int:
    from sgl.runtime.build.engine_config import EngineConfig
    from sgl.runtime.executor.expected_device import expected_device
    from sgl.runtime.models.describe.family_listing import lineages, runs_of_parts

    config = EngineConfig.from_options(engine_options)
    choice = expected_device(config.device, config.dtype)
    families, parts = lineages(), runs_of_parts(choice.name, choice.dtype)
    if as_json:
        runs = {part: ran._asdict() for part, ran in parts.items()}
        found = {
            "device": choice.name,
            "dtype": choice.dtype,
            "families": [dataclasses.asdict(each) for each in families],
            "parts": runs,
        }
        print(json.dumps(found, indent=2))
    else:
        _print(listed(families, parts, f"{choice.name}, {choice.dtype}"))
    return 0


Line = tuple[str, str]  # what it is about, and the text


def listed(families: list[FamilyFile], parts: dict[str, LayerExecutorChoice], machine: str) -> Iterator[Line]:
    for family in families:
        yield family.file.removesuffix(".py"), family.about
        yield "", ", ".join(family.architectures)
    yield (
        "others",
        "transformers' own implementation with sgl's cache, if it allows that: Engine(implementation='transformers')",
    )
    by: dict[LayerExecutorChoice, list[str]] = {}
    for part, ran in parts.items():
        by.setdefault(ran, []).append(part)
    yield "", ""
    yield "here", machine
    for ran, names in by.items():
        yield ran.by, "; ".join(names) if ran.why is None else f"{'; '.join(names)} ({ran.why})"


def model_summary(found: MemoryEstimate) -> Iterator[Line]:
    yield "model", found.path
    yield (
        "architecture",
        f"{found.architecture}, {f'read by {found.family}' if found.family else 'which no family reads'}",
    )
    yield from (("note", note) for note in found.notes)
    yield from _stored(found)
    yield from _takes(found)
    yield from _runs(found)


def _stored(found: MemoryEstimate) -> Iterator[Line]:
    files, text = found.files, found.text
    if files.count:
        kinds = ", ".join(f"{count:,} numbers in {dtype}" for dtype, count in files.dtypes.items())
        yield "files", f"{files.count} with {size_of(files.bytes)}: {kinds}"
    if files.problem:
        yield "PROBLEM", files.problem
    elif found.sizes:
        yield "", "all tensors are there, with the right shapes"
    if text.problem:
        yield "PROBLEM", text.problem
    else:
        yield "tokenizer", f"{text.vocabulary:,} tokens; {'with a' if text.chat else 'without a'} chat template"


def _takes(found: MemoryEstimate) -> Iterator[Line]:
    sizes = found.sizes
    if sizes is None:
        return
    yield "parameters", f"{sizes.parameters:,} in {sizes.layers} layers"
    yield "weights", ", ".join(f"{size_of(size)} in {kind}" for kind, size in sizes.weights.items())
    yield "context", "; ".join(sizes.longest)
    one = sizes.kv_token * found.context
    yield (
        "KV",
        f"{sizes.kv_token:,} bytes a token; {size_of(one)} for a sequence of {found.context:,} tokens, "
        f"{size_of(one * found.sequences)} for {found.sequences} (max_running)",
    )
    yield "here", f"{found.device}, {found.dtype}; {size_of(found.free)} free"


def _runs(found: MemoryEstimate) -> Iterator[Line]:
    for row in found.layers:
        yield "layers", f"{row.layers}: {row.parts}"
        yield "", f"executor {row.executor}, attention {row.attention}"
    yield from (("slower", line) for line in found.slower)
    if found.layers and not found.slower:
        yield "", "this machine has nothing faster"


def sharding_summary(found: ShardingPlans) -> Iterator[tuple[str, str]]:
    yield "model", found.path
    yield (
        "GPUs",
        f"{found.cards} of {size_of(found.card)}; {found.dtype}; sizes are those of the fullest GPU, and the memory of "
        "steps is estimated",
    )
    for way in found.ways:
        yield "way", _named(way)
        if way.weights:
            fits = (
                ""
                if way.fits
                else f", too few for a sequence of {found.context:,}"
                if way.tokens
                else ": it does not fit"
            )
            yield (
                "",
                f"{size_of(way.weights)} of weights; {size_of(way.kv_token)} a token, {way.tokens:,} tokens in each "
                f"engine{fits}",
            )
        if way.refused:
            yield "", f"refused: {way.refused}"
    yield "take", "nothing fits: more GPUs, or weights in fewer bits" if found.chosen is None else _named(found.chosen)


def _named(way: ShardingPlan) -> str:
    return ", ".join(f"{name}={value}" for name, value in way.options.items()) or "one engine on one GPU"


def size_of(count: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,} bytes"


def _print(lines: Iterator[Line]) -> None:
    rows = list(lines)
    indent = max([INDENT, *(len(name) + 1 for name, _ in rows)])
    for name, text in rows:
        parts = textwrap.wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
        print(f"{name:<{indent}}{parts[0]}".rstrip())
        print("".join(f"{' ' * indent}{part}\n" for part in parts[1:]), end="")
