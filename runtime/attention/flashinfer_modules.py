"""flashinfer's compiled kernels: which ones a model needs, compiled once and found again later."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from .backend_protocols import BackendUnavailable

log = logging.getLogger("sgl")


class FlashInferModule(NamedTuple):
    """A module of kernels. backend: "fa2", which also splits keys, or "fa3", for long queries on Hopper."""

    backend: str
    query_dtype: torch.dtype
    kv_dtype: torch.dtype
    head_dim: int
    windowed: bool
    capped: bool = False

    def arguments(self) -> tuple[Any, ...]:
        """In flashinfer's order; no rotary or ALiBi inside, scores in float32."""
        dtypes = (self.query_dtype, self.kv_dtype, self.query_dtype, torch.int32)
        return self.backend, *dtypes, self.head_dim, self.head_dim, 0, self.windowed, self.capped, False


def load(kinds: Sequence[FlashInferModule]) -> dict[FlashInferModule, Any]:
    """Modules with `plan` and `paged_run`. Raises BackendUnavailable if they can be neither found nor compiled."""
    try:
        from flashinfer import jit
        from flashinfer.prefill import get_batch_prefill_module
    except ImportError as error:
        raise BackendUnavailable(f"flashinfer cannot be imported ({error}); pip install flashinfer-python") from error
    except Exception as error:
        raise BackendUnavailable(f"flashinfer fails on import: {first_line(error)}") from error
    try:
        _compile([jit.gen_batch_prefill_module(*kind.arguments()) for kind in kinds])
        return {kind: get_batch_prefill_module(*kind.arguments()) for kind in kinds}
    except BackendUnavailable:
        raise
    except Exception as error:
        raise BackendUnavailable(
            f"flashinfer's kernels cannot be compiled or loaded: {first_line(error)}; "
            "FLASHINFER_JIT_VERBOSE=1 shows the compiler's output"
        ) from error


def _compile(specs: list[Any]) -> None:
    missing = [spec for spec in specs if not spec.is_aot and not spec.is_compiled]
    if not missing:
        return
    _need_compiler()
    place = missing[0].build_dir.parent
    log.info("compiling %d modules of flashinfer, once, in about a minute; kept in %s", len(missing), place)
    started = time.perf_counter()
    with ThreadPoolExecutor(len(missing)) as pool:  # each where flashinfer looks for it: a common build is not found
        list(pool.map(lambda spec: spec.build(os.environ.get("FLASHINFER_JIT_VERBOSE") == "1"), missing))
    log.info("flashinfer compiled in %.0f s", time.perf_counter() - started)


def _need_compiler() -> None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = os.environ.get("FLASHINFER_NVCC") or shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")
    for name, found in (("nvcc", nvcc), ("ninja", shutil.which("ninja"))):
        if found is None:
            raise BackendUnavailable(
                f"flashinfer has to compile its kernels once and {name} is not installed; "
                "install it, or the package flashinfer-jit-cache with compiled kernels"
            )


def first_line(error: BaseException) -> str:
    """The line of a message that says most: compilers print it after many others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() and not line.startswith("Ninja")]
    return (telling or lines or [repr(error)])[0][:300]
