"""The host's time for a step: a model of one layer, so that the device has next to nothing to do, decoding in this
process and in a separate one.

    python benchmarks/gpu_host.py [--rows 1 256] [--tokens 512]

ms a step of so many rows that stream; and output tokens a second of as many that do not, the best of three.
`--shape tiny --device cpu --rows 4` tries the script out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gpu_profile import decoding, step_seconds
from gpu_shapes import SHAPES, shape_of, write_model
from gpu_work import generate, prompts

import sgl

STEPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 256])
    parser.add_argument("--tokens", type=int, default=512, help="of each row that does not stream")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = shape_of(args.shape, 1)
        model = write_model(Path(folder) / shape.name, shape)
        for process in (False, True):
            measure(args, model, shape.vocab, process)


def measure(args: argparse.Namespace, model: Path, vocab: int, process: bool) -> None:
    most = max(args.rows)
    room = (
        {"max_running": most, "kv_tokens": most * 4096, "context": 4096}
        if args.device == "cuda"
        else {"max_running": most, "kv_tokens": most * 2048, "threads": 1}
    )
    with sgl.Engine(model, device=args.device, dummy=True, process=process, **room) as engine:
        for rows in args.rows:
            rates = [generate(engine, prompts(rows, 16, vocab, seed), args.tokens).rate for seed in range(3)]
            with decoding(engine, rows, vocab, 64):
                step = step_seconds(engine, STEPS)
            where = "a separate process" if process else "this process"
            print(
                f"{where}, {rows} rows: {1e3 * step:.2f} ms a step; not streamed {max(rates):,.0f} tokens/s", flush=True
            )


if __name__ == "__main__":
    main()
