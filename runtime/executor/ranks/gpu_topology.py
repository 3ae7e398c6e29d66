"""The GPUs of this machine, and how they are linked."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import torch

from ...parallel import all_reduce_algorithms

LINKS = {
    "PIX": "PCIe, one bridge",
    "PXB": "PCIe, several bridges",
    "PHB": "PCIe, through the CPU",
    "NODE": "PCIe, within a NUMA node",
    "SYS": "PCIe, between NUMA nodes",
}


class GPU(NamedTuple):
    """bytes: of its memory."""

    name: str
    bytes: int


def list_gpus() -> list[GPU]:
    if not torch.cuda.is_available():
        return []
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [GPU(each.name, each.total_memory) for each in found]


def describe_links() -> Iterator[str]:
    """Lines for people."""
    found = list_gpus()
    if not found:
        yield "no GPU: replicas, tensor_parallel and pipeline_parallel run as processes on the CPU"
    for number, gpu in enumerate(found):
        yield f"{number}: {gpu.name}, {gpu.bytes / 1e9:.0f} GB"
    if len(found) > 1:
        yield from grouped(gpu_links(len(found)))
        yield from sums(len(found))


def sums(count: int) -> Iterator[str]:
    """How ranks on the first two, four and eight of so many GPUs would add up."""
    for ranks in (2, 4, 8):
        far = [
            pair
            for pair in combinations(range(ranks), 2)
            if ranks <= count and not torch.cuda.can_device_access_peer(*pair)
        ]
        if ranks <= count:
            way = (
                "NCCL, as GPU {} does not reach the memory of GPU {}".format(*far[0])
                if far
                else all_reduce_algorithms.describe_algorithms(ranks)
            )
            yield f"tensor_parallel={ranks}, all-reduce: {way}"


def grouped(pairs: dict[tuple[int, int], str]) -> Iterator[str]:
    """A line for each kind of link, with the pairs that have it."""
    for kind in dict.fromkeys(pairs.values()):
        which = [f"{a}-{b}" for (a, b), link in pairs.items() if link == kind]
        yield f"{kind}: {'all pairs' if len(which) == len(pairs) else ', '.join(which)}"


def gpu_links(count: int) -> dict[tuple[int, int], str]:
    """Of each pair of GPUs, by `nvidia-smi topo`; where that says nothing, whether one reads the other's memory."""
    try:
        text = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        text = ""
    said = matrix(text)
    return {pair: said.get(pair) or _by_access(*pair) for pair in combinations(range(count), 2)}


def matrix(text: str) -> dict[tuple[int, int], str]:
    """What a table of `nvidia-smi topo -m` says of pairs of GPUs."""
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU")]
    found: dict[tuple[int, int], str] = {}
    for row in rows:
        number = row[0].removeprefix("GPU")
        for other, link in enumerate(row[1 : len(rows) + 1]):
            if number.isdecimal() and int(number) < other:
                found[int(number), other] = (
                    f"NVLink, {link.removeprefix('NV')} links" if link.startswith("NV") else LINKS.get(link, link)
                )
    return found


def _by_access(a: int, b: int) -> str:
    return (
        "peer access, by a link that nvidia-smi does not tell"
        if torch.cuda.can_device_access_peer(a, b)
        else "no peer access: through main memory"
    )
