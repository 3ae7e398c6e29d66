"""The tables of docs/models.md, made from the code: `python docs/site/models.py` writes them into the page."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sgl.runtime.attention import (
    AttentionShape,
    BackendUnavailable,
    flashinfer_attention,
    triton_attention,
    triton_mla_attention,
)
from sgl.runtime.attention.cpu import cpu_attention
from sgl.runtime.models.describe.family_listing import PARTS, lineages, runs_of_parts

PAGE = Path(__file__).parents[1] / "models.md"
MADE = "<!-- made by docs/site/models.py: {} -->\n"
YES, NO = "yes", "torch"


def page(text: str) -> str:
    """The page with tables as the code has them now."""
    for name, table in (("families", families()), ("parts", parts())):
        begin, end = MADE.format(name), MADE.format("end")
        text = re.sub(
            re.escape(begin) + "(.*?)" + re.escape(end),
            lambda found, new=begin + table + end: new,
            text,
            count=1,
            flags=re.S,
        )
    return text


def families() -> str:
    rows = [f"| {each.about} | {', '.join(f'`{name}`' for name in each.architectures)} |" for each in lineages()]
    return "| what | `architectures` of config.json |\n|---|---|\n" + "".join(f"{row}\n" for row in rows)


def parts() -> str:
    on_cpu, on_gpu = (runs_of_parts(kind, "bfloat16") for kind in ("cpu", "cuda"))
    lines = [
        "| part | layers: C on a CPU | layers: Triton on a GPU | attention: C on a CPU | attention on a GPU |",
        "|---|---|---|---|---|",
    ]
    for name, made in PARTS.items():
        groups = made().attention.groups
        runs = [YES if runs[name].why is None else NO for runs in (on_cpu, on_gpu)]
        lines.append(
            f"| {name} | {' | '.join(runs)} | "
            f"{' | '.join([compiled(groups[0]), is_gpu_device(groups[0])] if groups else ['none', 'none'])} |"
        )
    return "\n".join(lines) + "\n"


def compiled(shape: AttentionShape) -> str:
    return YES if cpu_attention._missing(pool("cpu"), shape, None) is None else NO


def is_gpu_device(shape: AttentionShape) -> str:
    """The first backend that takes the shape."""
    if shape.latent:
        return "triton" if triton_mla_attention._missing(pool("cuda"), shape, False) is None else NO
    for name, refuses in (
        ("flashinfer", lambda: flashinfer_attention._check(pool("cuda"), shape, False)),
        ("triton", lambda: triton_attention._require(pool("cuda"), shape)),
    ):
        try:
            refuses()
        except BackendUnavailable:
            continue
        return name
    return NO


def pool(device: str) -> Any:
    """What the backends look at before they say no."""
    return SimpleNamespace(
        k=SimpleNamespace(is_cuda=device == "cuda", device=torch.device(device), dtype=torch.bfloat16)
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
