"""The runtime's kernels on one GPU at the shapes of Llama-3.1-8B, each against a peer and the roofline of the same run.

    python benchmarks/gpu_kernels.py [one_row chain attention matmul fp8 sampler layers gated loading mixed few_bits
    small_batch_layers] [--quick] [--tune] [--shape SHAPE]
    benchmarks/gpu_bench.sh kernels ...   where sgl cannot be installed

Times are those of captured CUDA graphs where not said otherwise; a table a question: microseconds of ours, of the
[peer], the rate, the share of the roofline, how many times faster than the best peer. Rooflines come first: copying,
and products after a second of load, when a power-capped GPU has lowered its clock.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from gpu_kernel_lab import Lab
    from gpu_kernel_sizes import Sizes
    from gpu_shapes import Shape

CASES = (
    "one_row",
    "chain",
    "attention",
    "matmul",
    "fp8",
    "sampler",
    "layers",
    "gated",
    "loading",
    "mixed",
    "few_bits",
    "few_rows",
)
NO_DEVICE = 2  # exit code


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="some of " + ", ".join(CASES) + "; all without any")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="also other cuts and tiles of one_row, chain, attention and matmul (minutes)",
    )
    parser.add_argument("--shape", default="llama8b", help="llama8b, qwen3-4b or gemma3-4b; qwen3-30b-a3b for chain")
    parser.add_argument("--share", type=int, default=1, help="of so many cards, what one has of the shape")
    parser.add_argument("--out", type=Path, help="write what is printed here, too")
    args = parser.parse_args(arguments)
    if unknown := [case for case in args.cases if case not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; known: {', '.join(CASES)}")
    args.cases = args.cases or list(CASES)
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = options(arguments)
    import torch

    if not torch.cuda.is_available():
        print(
            "gpu_kernels.py needs a CUDA device and torch sees none; tests/cpu/test_gpu_kernels.py runs its parts "
            "without one",
            file=sys.stderr,
        )
        return NO_DEVICE
    from gpu_kernel_sizes import QUICK, Sizes
    from gpu_shapes import shape_of, share_of

    device = torch.device("cuda", torch.cuda.current_device())
    return run(
        args, share_of(shape_of(args.shape), args.share), device, torch.bfloat16, QUICK if args.quick else Sizes()
    )


def run(args: argparse.Namespace, shape: Shape, device: torch.device, dtype: torch.dtype, sizes: Sizes) -> int:
    """1 if something failed."""
    import torch
    from gpu_kernel_lab import Lab
    from gpu_kernel_roof import roofline

    started = time.perf_counter()
    torch.manual_seed(0)
    roof, text = roofline(shape, device, dtype, sizes)
    lab = Lab(shape, device, dtype, sizes, roof, args.tune)
    lab.say(where(device))
    lab.say(text)
    for case in args.cases:
        one(lab, case)
        lab.say(f"[{case}: {time.perf_counter() - started:.0f} s since the start]")
        if args.out:
            args.out.write_text("\n".join(lab.text) + "\n")
    if lab.failures:
        lab.say("FAILED: " + ", ".join(lab.failures))
    return int(bool(lab.failures))


def one(lab: Lab, case: str) -> None:
    """A case that fails is reported; the next one runs."""
    try:
        importlib.import_module(f"gpu_kernel_{case}").measure(lab)
    except Exception as error:
        lab.failures.append(case)
        lab.say(f"[{case}] FAILED: {error!r}\n{traceback.format_exc()[-3000:]}")
    gc.collect()
    if lab.device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def where(device: torch.device) -> str:
    import torch
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}; {' '.join(sys.argv)}"


if __name__ == "__main__":
    sys.exit(main())
