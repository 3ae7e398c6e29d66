"""The tiny checkpoints of all families that are tested against transformers, for tests of executors."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import test_families_gemma4
from family_checks import reference

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    case: found
    for file in sorted(Path(__file__).parent.glob("test_families_*.py"))
    for case, found in getattr(importlib.import_module(file.stem), "CASES", {}).items()
    if [type(each) for each in found] == [str, dict]  # a class of transformers and its keys
}
GEMMA4 = {
    f"gemma4, {case}": ("Gemma4ForCausalLM", test_families_gemma4.SIZES | keys)
    for case, keys in test_families_gemma4.CASES.items()
}

_FOLDER = tempfile.TemporaryDirectory(prefix="sgl_families_")


def write_family(case: str, path: Path, **more: Any) -> Path:
    """more: keys of its configuration."""
    if more:
        return _written(case, path, more)
    return Path(shutil.copytree(_kept(case), path, dirs_exist_ok=True))


@cache
def _kept(case: str) -> Path:
    """As many tests read the same."""
    return _written(case, Path(_FOLDER.name, case.replace("/", " ")), {})


def _written(case: str, path: Path, more: dict[str, Any]) -> Path:
    architecture, keys = (FAMILIES | GEMMA4)[case]
    reference(architecture, **keys | more).save_pretrained(path)
    return path
