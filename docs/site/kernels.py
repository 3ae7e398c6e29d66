"""The table of kernels for quantized weights in docs/gpu.md: `python docs/site/kernels.py` after a change of it.

The table is the one that products choose from (runtime/kernels/quantized/gemm_dispatch.py). A test compares the page
with what this would write.
"""

from __future__ import annotations

import re
from pathlib import Path

from sgl.runtime.kernels.quantized.gemm_dispatch import GEMM, GEMV, KernelRange
from sgl.runtime.quantization.fp8_linear import FEW_ROWS as FLOAT8_ROWS
from sgl.runtime.quantization.gpu_quantized_linear import FEW_ROWS as INT8_ROWS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
MADE = "<!-- made by docs/site/kernels.py: {} -->\n"


def page(text: str) -> str:
    """docs/gpu.md with the table."""
    begin, end = MADE.format("kernels"), MADE.format("end")
    return re.sub(re.escape(begin) + "(?s:.*?)" + re.escape(end), lambda _: begin + table() + end, text, count=1)


def table() -> str:
    rounded = "with activations rounded to the same type, a scale for each row"
    rows = ["| rows in a step | weights | GPU | kernel |", "|---|---|---|---|", *map(_row, GEMV)]
    rows += [
        f'| above {FLOAT8_ROWS} | `weights="fp8"` | any | `torch._scaled_mm`: {rounded} |',
        f"| above {INT8_ROWS} | int8 made for such activations | any | `batch_invariant_matmul`: {rounded} |",
    ]
    rows += map(_row, GEMM)
    return "\n".join(rows) + "\n"


def _row(each: KernelRange) -> str:
    kernel = each.kernel if each.kernel == "cuBLAS" else f"`{each.kernel}`"
    return f"| {each.rows} | {each.weights} | {each.gpu} | {kernel}: {each.about} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
