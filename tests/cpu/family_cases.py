"""The tiny checkpoints of all families that are tested against transformers, for tests of executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import test_families_bloom
import test_families_gemma
import test_families_gpt
import test_families_llama
import test_families_modern
import test_families_opt
from family_checks import reference

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    case: found
    for module in (
        test_families_llama, test_families_gemma, test_families_modern, test_families_gpt, test_families_opt, test_families_bloom,
    )
    for case, found in module.CASES.items()
}  # fmt: skip


def write_family(case: str, path: Path, **more: Any) -> Path:
    """more: keys of its configuration."""
    architecture, keys = FAMILIES[case]
    reference(architecture, **keys | more).save_pretrained(path)
    return path
