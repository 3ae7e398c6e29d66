"""Read before any test: without a GPU, Triton's kernels run in its interpreter, which must be said before its import."""

from __future__ import annotations

import importlib.util
import os


def _gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if "TRITON_INTERPRET" not in os.environ and not _gpu():
    os.environ["TRITON_INTERPRET"] = "1"
