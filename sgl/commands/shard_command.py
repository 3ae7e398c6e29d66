"""`sgl shard`: a model's weights in the form of the kernels, so that engines load them without quantizing again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_ABOUT = """\
Writes MODEL as the directory OUT, each projection in the form in which Engine(MODEL, weights=...) computes with it on this
machine: merged, quantized and laid out for its kernels. sgl.Engine(OUT) detects that and loads it as it is.
Other engines do not read it; `sgl quantize` writes a format that they read.

With --ranks 2 it is for Engine(OUT, tensor_parallel=2) only: each rank reads its own files, without slicing them.
--stages, --expert-parallel and --redundant-experts are for engines with the options pipeline_parallel, expert_parallel and
redundant_experts.
"""  # noqa: E501
DTYPES = ("float32", "bfloat16", "float16")


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "shard", help="write a model in the form of the kernels, which loads faster", description=_ABOUT
    )
    parser.add_argument("model", metavar="MODEL", help="a model directory or hub id")
    parser.add_argument("out", metavar="OUT", type=Path, help="the directory to write, which must not exist")
    parser.add_argument(
        "--weights",
        default="auto",
        help="as Engine(weights=...): auto, int8, int4, int4_hqq, mxfp4, nvfp4; fp8 on a GPU (default: auto)",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the dense weights (default: that of most of them)")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="for Engine(tensor_parallel=N) (default: 1)")
    parser.add_argument(
        "--stages",
        type=int,
        default=1,
        metavar="N",
        help="for Engine(pipeline_parallel=N), each stage of that many ranks (default: 1)",
    )
    parser.add_argument(
        "--expert-parallel", action="store_true", help="for Engine(expert_parallel=True): each rank holds whole experts"
    )
    parser.add_argument(
        "--redundant-experts",
        type=int,
        default=0,
        metavar="N",
        help="with that: so many copies of experts in each layer (default: 0)",
    )
    parser.add_argument("--device", default="cpu", help="whose kernels it is for: cpu, cuda, ... (default: cpu)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Status 1 where nothing was written."""
    from sgl.runtime.calibration.shard_checkpoint import shard
    from sgl.runtime.errors import RuntimeFailure
    from sgl.runtime.executor.device_choice import named_device
    from sgl.runtime.loading import resolve_model
    from sgl.runtime.loading.sharded_state import ParallelSizes

    parts = ParallelSizes(options.ranks, options.stages, options.expert_parallel, options.redundant_experts)
    try:
        report = shard(
            resolve_model(options.model),
            options.out,
            options.weights,
            parts=parts,
            dtype=options.dtype,
            device=named_device(options.device),
        )
    except RuntimeFailure as error:
        print(f"sgl shard: {error}", file=sys.stderr)
        return 1
    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(report.packed.items()))
    if parts.ranks > 1:
        print(f"ranks        {parts.ranks}, for Engine({parts})")
    print(f"projections  {kinds or 'none packed'}; {report.dense} dense")
    print(f"bytes        {report.bytes_before:,} -> {report.bytes:,}")
    print(f"seconds      {report.seconds:.1f}")
    return 0
