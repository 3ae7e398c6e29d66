"""Decodes of latent attention alone, in CUDA graphs: over cuts, against the bytes of the rows; and what stands around
it.

python benchmarks/gpu_kernel_latent.py [--sequences 64 --context 4096 --heads 16]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from itertools import product

import torch
from gpu_kernel_experts import THREADS, copy_rate, graph_seconds

from sgl.runtime.kernels.attention.attention_latent import LatentScratch, LatentTile, decode
from sgl.runtime.kernels.launch.compile_ahead import KernelCompileJobs, compiling

RANK, TURNED, LAYERS = 512, 64, 4
CUTS = [
    LatentTile(16, block, 64, programs, warps, stages)
    for block, warps, stages, programs in product((32, 64), (4, 8), (2, 3, 5), (132, 264, 396))
    if block * stages <= 192
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}: copies move {copy_rate() / 1e12:.2f} TB/s")
    measure(args.sequences, args.context, args.heads)


def measure(sequences: int, context: int, heads: int) -> None:
    """Of LAYERS pools in turn, so that no row is still in the cache."""
    slots = sequences * context
    pools = [torch.randn(slots + 1, 1, RANK + TURNED, device="cuda").bfloat16() for _ in range(LAYERS)]
    q = torch.randn(sequences, heads, RANK + TURNED, device="cuda").bfloat16()
    table = (1 + torch.arange(slots, device="cuda", dtype=torch.int32)).view(sequences, context)
    rows, contexts = (
        torch.arange(sequences, dtype=torch.int32, device="cuda"),
        torch.full((sequences,), context, dtype=torch.int32, device="cuda"),
    )
    out, size = torch.empty(sequences, heads, RANK, dtype=torch.bfloat16, device="cuda"), slots * (RANK + TURNED) * 2

    def call(cut: LatentTile, pool: torch.Tensor) -> Callable[[], None]:
        scratch = scratches[cut]
        return lambda: decode(
            q, pool, out, rows, contexts, table, page_size=1, scale=0.1, row_scale=1.0, scratch=scratch, tile=cut
        )

    scratches = {cut: LatentScratch(sequences, heads, RANK, cut, q.device) for cut in CUTS}
    jobs = KernelCompileJobs(q.device, THREADS)
    with compiling(jobs):
        for cut in CUTS:
            call(cut, pools[0])()
    with suppress(Exception):
        jobs.wait()
    found = []
    for cut in CUTS:
        try:
            found.append((graph_seconds([call(cut, pool) for pool in pools], 0.02), str(cut)))
        except Exception as error:
            print(f"    {cut}: {str(error).splitlines()[0][:100]}")
    for seconds, what in sorted(found)[:8]:
        print(
            f"    decode {sequences} x {context}, {heads} heads: {1e6 * seconds:.1f} us, {size / seconds / 1e12:.2f} "
            f"TB/s ({size / seconds / copy_rate():.0%} of copies) {what}"
        )
    default = next(seconds for seconds, what in found if what == str(LatentTile()))
    print(f"    in use: {1e6 * default:.1f} us")


if __name__ == "__main__":
    main()
