"""What loading takes: seconds, GB/s and the peak of memory, against what is kept, by what becomes of the weights.

    python benchmarks/loading.py [--layers 16] [--device cpu] [--keep]

A checkpoint of random bfloat16 weights (Llama's shape, hidden 1,024, as large as asked for) is loaded in a process of
its own for each kind. The peak is the high water mark of its memory beyond what it held before (of the allocator's on a
GPU); it must stay below what is kept,
two parts as they are loaded (one where weights change), and the buffers of the readers; and below what
`engine.info()["loading"]` counts, with these buffers.
--keep writes results/loading.txt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_results import keep_text, machine

KINDS = (
    "auto",
    "int8",
    "int4",
    "packed int8",
    "packed int4",
    "int4 /2",
    "packed int4 /2",
)  # packed: as `sgl shard` wrote it; /2: the last of two ranks
WHOLE = ("auto", "int8", "int4")  # what is tried on a GPU
BUFFERS = 2 * 8 * 16 * 2**20 + 64 * 2**20  # of the readers, and what the allocator keeps of temporary tensors
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
}
CHILD = """
import json, sys, time
import torch
from pathlib import Path
from sgl.runtime.loading.sharded_state import ParallelSizes
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace, load_stage
from sgl.runtime.quantization import transform_for

path, kind, ranks, device = sys.argv[1:]
device = torch.device(device)
transform = transform_for(kind, False, device)
torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)

def memory(kind):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) if kind == "VmHWM" else torch.cuda.memory_allocated(device)
    line = next(line for line in open("/proc/self/status") if line.startswith(kind))
    return int(line.split()[1]) * 1024

open("/proc/self/clear_refs", "w").write("5")  # the high water mark begins anew
if device.type == "cuda":
    torch.cuda.reset_peak_memory_stats(device)
before = memory("VmRSS")
started = time.perf_counter()
place = RankPlace.all(ParallelSizes(int(ranks)))[-1]
model = load_stage(Path(path), torch.bfloat16, device, place, transform=transform)
seconds = time.perf_counter() - started
print(json.dumps([seconds, memory("VmHWM") - before, model.weight_bytes, model.loaded.peak]))
"""


def write(folder: Path, layers: int) -> None:
    """A checkpoint."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, num_hidden_layers=layers, tie_word_embeddings=False, dtype="bfloat16")
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


def largest_part() -> int:
    """Bytes of the largest part in bfloat16: the embedding, or a layer."""
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    return 2 * max(SHAPE["vocab_size"] * hidden, 3 * hidden * inner + 3 * hidden * hidden)


def loaded(folder: Path, kind: str, device: str, ranks: int = 1) -> tuple[float, int, int, int]:
    """Seconds, bytes at the peak, bytes that are kept, bytes at the peak as the loader counted them."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), kind, str(ranks), device], capture_output=True, text=True, check=True
    )
    seconds, peak, kept, counted = json.loads(done.stdout.splitlines()[-1])
    return float(seconds), int(peak), int(kept), int(counted)


def prepared(folder: Path, kind: str) -> tuple[Path, str, int, int]:
    """What is loaded, how, by the last of how many ranks, and the bytes of its files, which are in memory then."""
    weights, _, count = kind.removeprefix("packed ").partition(" /")
    ranks, files = int(count or 1), "*.safetensors"
    if kind.startswith("packed "):
        from sgl.runtime.calibration.shard_checkpoint import shard
        from sgl.runtime.loading.sharded_state import ParallelSizes

        origin, folder = folder, folder / kind.replace(" ", "-").replace("/", "")
        shard(origin, folder, weights, parts=ParallelSizes(ranks))
        weights, files = "auto", f"state-rank-{ranks - 1}-*"
    return folder, weights, ranks, sum(file.stat().st_size for file in folder.glob(files))


def rows(layers: int, device: str) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory() as place:
        write(Path(place), layers)
        loaded(Path(place), "auto", device)  # the files are in memory from now on
        for kind in KINDS if device == "cpu" else WHOLE:
            folder, asked, ranks, size = prepared(Path(place), kind)
            seconds, peak, kept, counted = sorted(loaded(folder, asked, device, ranks) for _ in range(3))[1]
            bound = kept + 2 * largest_part() + BUFFERS
            found.append(
                {
                    "weights": kind,
                    "file GB": size / 1e9,
                    "seconds": seconds,
                    "GB/s": size / seconds / 1e9,
                    "kept GB": kept / 1e9,
                    "peak GB": peak / 1e9,
                    "counted GB": counted / 1e9,
                    "bound GB": bound / 1e9,
                }
            )
            assert kept <= counted <= bound and peak < counted + BUFFERS, (
                f"weights={kind!r}: a peak of {peak / 1e9:.2f} GB, counted were {counted / 1e9:.2f}"
            )
            assert peak < bound, f"weights={kind!r}: a peak of {peak / 1e9:.2f} GB, {bound / 1e9:.2f} at most"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    table = rows(asked.layers, asked.device)
    lines = ["  ".join(f"{name:>14}" for name in table[0])]
    lines += [
        "  ".join(f"{value:>14}" if isinstance(value, str) else f"{value:14.2f}" for value in row.values())
        for row in table
    ]
    text = f"{machine()}\n\n" + "\n".join(lines)
    print(text)
    if asked.keep:
        keep_text("loading", text)


if __name__ == "__main__":
    main()
