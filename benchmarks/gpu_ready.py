"""Case 1: seconds from the start of a process to its first token, by phase; and
a checkpoint of random weights to read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_report import Figure
from gpu_shapes import Shape, write_model

SHARD = 4 * 10**9  # bytes of a file of the checkpoint
LIMIT = 240  # seconds
PART, READERS = 16 * 2**20, 8  # bytes at a time, and threads, of reading alone

PROCESS = """
import time; marks = {"python": time.time()}
import json, sys
import torch; marks["import torch"] = time.time()
import sgl; from sgl.runtime.sampling.sampling_params import SamplingParams; sgl.Engine; marks["import sgl"] = time.time()
engine = sgl.Engine(sys.argv[1], **json.loads(sys.argv[2])); marks["Engine()"] = time.time()
sequence = engine.open(); sequence.extend(list(range(300, 428)))
def more(n): sequence.generate(SamplingParams(max_tokens=n, temperature=0, ignore_eos=True)).result()
more(1); marks["first token"] = time.time()
more(8); marks["8 more"] = time.time()
print("MARKS " + json.dumps([marks, engine.info().get("startup", {})], default=str), flush=True)
engine.close()
"""  # noqa: E501


def ready(
    model: Path, options: dict[str, Any], shape: Shape, anchored: bool, checkpoint: Path | None, device: torch.device
) -> list[Figure]:
    """With dummy weights and an empty Triton cache, again with that cache, and with the weights read from disk."""
    figures = []
    with tempfile.TemporaryDirectory() as kernels:
        for label in ("nothing compiled yet", "kernels compiled before"):
            figures.append(start(f"dummy weights, {label}", model, options | {"dummy": True}, kernels, anchored))
        if checkpoint is not None:
            seconds = write_checkpoint(checkpoint, shape, device)
            options = options | {"dummy": False}
            found = start("weights from the page cache", checkpoint, options, kernels, anchored)
            found.note += f"; {size_of(checkpoint) / 1e9:.1f} GB, written {seconds:.0f} s before"
            drop_from_page_cache(checkpoint)
            plain = seconds_to_read(checkpoint)
            drop_from_page_cache(checkpoint)
            cold = start("weights read from disk", checkpoint, options, kernels, anchored)
            cold.note += f"; reading alone, by {READERS} threads: {plain:.2f} s"
            figures += [found, cold]
    return figures


def start(label: str, model: Path, options: dict[str, Any], kernels: str, anchored: bool) -> Figure:
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(model), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | {"TRITON_CACHE_DIR": kernels},
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("MARKS ")), None)
    if line is None:
        raise RuntimeError(f"the process ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    marks, startup = json.loads(line.removeprefix("MARKS "))
    steps = phases(started, marks)
    note = ", ".join(f"{name} {seconds:.2f}" for name, seconds in steps.items())
    if isinstance(startup, dict) and startup:
        inside = ", ".join(
            f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in startup.items()
        )
        note += f"; inside Engine(): {inside}"
    target = 12.0 if anchored else None
    anchor = 82.0 if anchored else None
    return Figure(
        "1",
        f"ready, {label}",
        marks["first token"] - started,
        "s",
        anchor,
        target,
        note=note,
        more={"phases": steps, "startup": startup},
    )


def phases(started: float, marks: dict[str, float]) -> dict[str, float]:
    """Seconds between the marks, in their order."""
    times = [started, *marks.values()]
    return {name: later - before for name, before, later in zip(marks, times, times[1:], strict=False)}


def drop_from_page_cache(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        with open(file, "rb") as handle:
            os.fdatasync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_to_read(folder: Path) -> float:
    """What the disk gives: all bytes of the weights, read by threads into buffers that are used again."""
    parts = [
        (file, start) for file in sorted(folder.glob("*.safetensors")) for start in range(0, file.stat().st_size, PART)
    ]
    here, started = threading.local(), time.perf_counter()

    def read(part: tuple[Path, int]) -> None:
        if not hasattr(here, "buffer"):
            here.buffer = bytearray(PART)
        with open(part[0], "rb", buffering=0) as handle:
            os.preadv(handle.fileno(), [here.buffer], part[1])

    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(read, parts))
    return time.perf_counter() - started


def write_checkpoint(folder: Path, shape: Shape, device: torch.device) -> float:
    """Random bfloat16 weights of `shape` as safetensors of some GB each; kept
    if they are there. Returns the seconds.
    """
    from safetensors.torch import save_file

    started, index = time.time(), folder / "model.safetensors.index.json"
    if index.is_file():
        return 0.0
    write_model(folder, shape)
    places: dict[str, str] = {}
    for number, part in enumerate(_shards(shape)):
        name = f"model-{number:05d}.safetensors"
        save_file(
            {key: (0.02 * torch.randn(size, device=device)).to(torch.bfloat16).cpu() for key, size in part.items()},
            folder / name,
        )
        places |= dict.fromkeys(part, name)
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return time.time() - started


def _shards(shape: Shape) -> Iterator[dict[str, tuple[int, ...]]]:
    part: dict[str, tuple[int, ...]] = {}
    held = 0
    for name, size in weights(shape):
        part[name] = size
        held += 2 * int(torch.Size(size).numel())
        if held > SHARD:
            yield part
            part, held = {}, 0
    if part:
        yield part


def weights(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and size of every tensor of a Llama checkpoint."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        head = f"model.layers.{layer}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{head}self_attn.{name}_proj.weight", (rows, shape.hidden)
        yield f"{head}self_attn.o_proj.weight", (shape.hidden, queries)
        yield f"{head}mlp.gate_proj.weight", (shape.inner, shape.hidden)
        yield f"{head}mlp.up_proj.weight", (shape.inner, shape.hidden)
        yield f"{head}mlp.down_proj.weight", (shape.hidden, shape.inner)
        yield f"{head}input_layernorm.weight", (shape.hidden,)
        yield f"{head}post_attention_layernorm.weight", (shape.hidden,)
    yield "model.norm.weight", (shape.hidden,)
    yield "lm_head.weight", (shape.vocab, shape.hidden)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
