"""From a checkpoint to the GPU: our threads against safetensors' own loader, and the rate of page-locked copies.

The files are in memory (/dev/shm) where there is room: the copy to the GPU is measured, not the disk.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_kernel_lab import Lab
from gpu_ready import size_of, write_checkpoint
from gpu_report import text_table

from sgl.runtime.executor.weight_offload import OffloadedWeights, tensors_of
from sgl.runtime.loading import load_model
from sgl.runtime.loading.tensor_files import tensor_transfer

READERS = (4, 8, 16)  # threads; 8 is what the engine uses
PINNED = 2**30  # bytes


def measure(lab: Lab) -> None:
    shape = replace(lab.shape, layers=min(lab.shape.layers, lab.sizes.loaded))
    with _folder(shape.flops + 4 * shape.vocab * shape.hidden) as folder:
        seconds = write_checkpoint(folder, shape, lab.device)
        lab.say(
            f"checkpoint of {shape.layers} layers, {size_of(folder) / 1e9:.1f} GB, written to {folder.parent} in "
            f"{seconds:.1f} s"
        )
        size = size_of(folder)
        lines = [["page-locked copy", "", _pinned(lab) * size / PINNED, size]]
        lines += _loads(lab, folder, size)
    head = ("loading", "", "seconds", "GB/s")
    lab.say(
        "\n== loading\n"
        + text_table(head, [(what, case, float(s), float(moved / s / 1e9)) for what, case, s, moved in lines])
    )


def _loads(lab: Lab, folder: Path, size: int) -> list[list[Any]]:
    """(what, case, seconds, bytes)."""
    lines: list[list[Any]] = [
        ["safetensors.torch.load_file", "peer", _seconds(lab, lambda: _library(lab, folder))[0], size]
    ]
    lines.append(["load_model", "the first", _seconds(lab, lambda: load_model(folder, lab.dtype, lab.device))[0], size])
    lines += [["load_model", f"{threads} threads", _with_threads(lab, folder, threads), size] for threads in READERS]
    seconds, model = _seconds(lab, lambda: load_model(folder, lab.dtype, lab.device, dummy_seed=0))
    lines.append(["random weights", "on the device", seconds, size])
    seconds, copy = _seconds(
        lab, lambda: OffloadedWeights(t for t in tensors_of(model) if t.device.type == lab.device.type)
    )
    lines.append(["sleep", "weights to main memory", seconds, size])
    lines.append(["wake", "and back", _seconds(lab, copy.restore)[0], size])
    return lines


def _with_threads(lab: Lab, folder: Path, threads: int) -> float:
    before, tensor_transfer.READERS = tensor_transfer.READERS, threads
    try:
        return _seconds(lab, lambda: load_model(folder, lab.dtype, lab.device))[0]
    finally:
        tensor_transfer.READERS = before


def _library(lab: Lab, folder: Path) -> list[Any]:
    from safetensors.torch import load_file

    return [load_file(file, device=str(lab.device)) for file in folder.glob("*.safetensors")]


def _seconds(lab: Lab, task: Callable[[], Any]) -> tuple[float, Any]:
    lab.wait()
    started = time.perf_counter()
    result = task()
    lab.wait()
    return time.perf_counter() - started, result


def _pinned(lab: Lab) -> float:
    """Seconds of PINNED bytes from page-locked memory."""
    cuda = lab.device.type == "cuda"
    source = torch.zeros(PINNED if cuda else 2**20, dtype=torch.uint8, pin_memory=cuda)
    target = torch.empty_like(source, device=lab.device)
    target.copy_(source)
    seconds = _seconds(lab, lambda: target.copy_(source, non_blocking=True))[0]
    return seconds * PINNED / len(source)


@contextmanager
def _folder(wanted: int) -> Iterator[Path]:
    """For a checkpoint of so many bytes, removed afterwards."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1.2 * wanted
    with tempfile.TemporaryDirectory(dir=memory if roomy else None) as folder:
        yield Path(folder) / "checkpoint"
