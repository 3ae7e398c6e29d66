"""`sglang.test.ci.ci_register`: marks of test files for the scheduling of sglang's CI, which mean nothing here."""

from __future__ import annotations

from typing import Any

__all__ = ["register_amd_ci", "register_cpu_ci", "register_cuda_ci", "register_npu_ci", "register_xpu_ci"]


def _mark(*args: Any, **kwargs: Any) -> None:
    """Takes how long a file runs and in which suite (`est_time=`, `suite=`). No effect."""


register_amd_ci = register_cpu_ci = register_cuda_ci = register_npu_ci = register_xpu_ci = _mark
