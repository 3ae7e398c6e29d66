"""Which files of a model are its weights: in a directory, on the hub, in a store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from ..gguf_files.gguf_file import PART
from .bounded_json import MOST_JSON, read_json

MOST_INDEX = 48 * 2**20  # bytes
MOST_SMALL = 64 * 2**20  # bytes of a file that is neither weights nor named in SETTINGS
SETTINGS = (
    "config.json",
    "generation_config.json",
    "sgl.json",
    "quantize_config.json",
    "hf_quant_config.json",
    "adapter_config.json",
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES, PICKLE_INDEX = ("pytorch_model.bin", "pytorch_model.pt", "model.pt"), "pytorch_model.bin.index.json"
HOLDING = (".safetensors", ".bin", ".pt", ".pth", ".gguf")  # ends of files that hold weights
NO_MODELS = ("mmproj", "imatrix")  # GGUF files that are no language models


def require_small(name: str, size: int | None, where: str) -> None:
    """Before it is fetched: no more than would be read of it. size: None where nothing says it."""
    most = MOST_INDEX if name.endswith(".index.json") else MOST_JSON if name in SETTINGS else MOST_SMALL
    if size is not None and size > most:
        raise CheckpointError(f"{where}/{name} has {size:,} bytes, at most {most:,} are read")


def weight_names(there: Collection[str], open_index: Callable[[str], Path], load_format: str, where: str) -> list[str]:
    """The names of the files that hold the weights, those of an index whether they are there or not.

    there: names of all files.  open_index: a file on this machine with the content of one of them.  load_format: with
    "pt" pickled files are taken where there are no safetensors. Raises CheckpointError where there is nothing to take.
    """
    if INDEX in there:
        return _shards(open_index(INDEX), ".safetensors")
    if WEIGHTS in there:
        return [WEIGHTS]
    if load_format == "pt" and PICKLE_INDEX in there:
        return _shards(open_index(PICKLE_INDEX), ".bin")
    if load_format == "pt" and (one := next((name for name in PICKLES if name in there), None)):
        return [one]
    raise no_weights_error(there, [WEIGHTS], where)


def no_weights_error(there: Iterable[str], absent: list[str], where: str) -> CheckpointError:
    found = sorted(name for name in there if name.endswith(HOLDING))
    return CheckpointError(
        f"{where} lacks the weights {some(absent)} (found: {some(found) or 'no weights at all'}); {_remedy(found)}"
    )


def _remedy(found: list[str]) -> str:
    if any(name == PICKLE_INDEX or name in PICKLES for name in found):
        return (
            "pickled weights are read with load_format='pt', without running what they bring; or convert the "
            "checkpoint to safetensors"
        )
    if any(name.endswith(".pth") for name in found):
        return (
            ".pth files of a model's makers have their own names and splits, which are not read; take the model "
            "in Hugging Face format"
        )
    return "complete the download, or convert the checkpoint to safetensors"


def _shards(index: Path, end: str) -> list[str]:
    """The files that an index names, each next to it."""
    shards = read_json(index, MOST_INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no 'weight_map'; restore the file")
    for tensor, name in shards.items():
        if not isinstance(name, str) or not is_settings_file(name, end):
            raise CheckpointError(
                f"{index}: weight_map has {shown(tensor)} in {shown(name)}, which is not the name of a {end[1:]} file "
                "next to it; restore the file"
            )
    return sorted(set(shards.values()))


def is_settings_file(name: str, end: str) -> bool:
    """Whether it names a file of that kind in the folder of who names it, and none elsewhere."""
    return name.endswith(end) and os.path.basename(name) == name and not set(name) & {"\0", "\\"}


def chosen_gguf(names: Iterable[str], word: str | None, where: str) -> list[str]:
    """The files of the one GGUF model whose name holds a word, its parts in order; of the only model without a word.

    Raises CheckpointError with all the names where none or several of them fit.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(".gguf") and not os.path.basename(name).startswith(NO_MODELS):
            part = PART.fullmatch(name)
            models.setdefault(f"{part[1]}.gguf" if part else name, []).append(name)
    fitting = _fitting(list(models), word)
    if len(fitting) != 1:
        found = f"{len(fitting) or 'no'} GGUF models{'' if word is None else f' with {word!r} as a word of the name'}"
        raise CheckpointError(
            f"{where} has {found}, one is wanted (found: {some(fitting or list(models)) or 'no GGUF file'}); name one "
            "of them"
        )
    return models[fitting[0]]


def _fitting(names: list[str], word: str | None) -> list[str]:
    """The names that are the word; else those that hold it between other words: `Q4_K` is none of `Q4_K_M`."""
    if word is None:
        return names
    same = [
        name for name in names if word in (name, os.path.basename(name), os.path.basename(name).removesuffix(".gguf"))
    ]
    apart = re.compile(rf"(?<![a-z0-9_]){re.escape(word.lower())}(?![a-z0-9_])")
    return same or [name for name in names if apart.search(os.path.basename(name).lower())]


def some(names: list[str]) -> str:
    return f"{', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
