"""The figures as tables: against the peers, against sgl with parts off, and where sgl is not ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.bench_results import RESULTS, machine

from .every import WORKLOADS
from .peer_calls import WHO
from .picture import draw
from .pieces import SWITCHES

Figures = list[dict[str, Any]]
PARTS = (
    "no prefix cache",
    "no fork",
    "no fusion",
    "requests",
    "no reuse",
    "no jump-forward",
    "no batching",
    "all off",
    "no grammar",
)
SAME = {"same_decisions": "same choices", "same_texts": "same texts", "valid_json": "valid JSON"}
NEAR = 0.05  # differences up to this share are noise of a shared machine


def show(figures: Figures, short: bool) -> None:
    print()
    print("\n".join(lines(figures, short)))
    if short:
        print(
            "\nSmall, one round each: a look, no measurement. The kept one: python -m benchmarks.workloads --keep "
            "--peers PYTHON"
        )


def keep(figures: Figures) -> None:
    """Write the results as JSON, text and picture."""
    head = machine()
    (RESULTS / "workloads.json").write_text(json.dumps({"machine": head, "pieces": figures}, indent=1) + "\n")
    text = "".join(f"{key}: {value}\n" for key, value in head.items()) + "\n" + "\n".join(lines(figures)) + "\n"
    (RESULTS / "workloads.txt").write_text(text)
    (RESULTS / "workloads.svg").write_text(draw(ratios(figures), costs(figures)))
    print("\nkept in benchmarks/results/workloads.json, .txt and .svg")


def lines(figures: Figures, short: bool = False) -> list[str]:
    parts = [peers_table(figures), *agreement(figures), switches_table(figures), tokens_table(figures)]
    if not short:  # one round says nothing about small differences
        parts.append(lost(figures))
    return [line for part in parts if part for line in (*part, "")]


def ratios(figures: Figures) -> dict[str, dict[str, float]]:
    """By workload and peer: how many times as long the peer takes for as many tokens."""
    found: dict[str, dict[str, float]] = {}
    for piece in figures:
        if piece["who"] != SWITCHES:
            found.setdefault(piece["workload"], {})[piece["who"]] = ratio(piece)
    return found


def ratio(piece: dict[str, Any]) -> float:
    """Of the times; where the peer made fewer or more tokens, of the times of a token."""
    times, made = piece["seconds"] / piece["sgl_seconds"], piece["made"]
    return times * piece["sgl_made"] / made if made and piece["sgl_made"] else times


def costs(figures: Figures) -> dict[str, dict[str, float]]:
    """By workload and setting: how many times as long sgl takes without the part."""
    return {
        piece["workload"]: {
            name: run["seconds"] / piece["settings"]["everything on"]["seconds"]
            for name, run in piece["settings"].items()
            if name in PARTS
        }
        for piece in figures
        if piece["who"] == SWITCHES
    }


def peers_table(figures: Figures) -> list[str]:
    by = {(piece["workload"], piece["who"]): piece for piece in figures if piece["who"] != SWITCHES}
    rows = []
    for name in WORKLOADS:
        own = [by[name, who] for who in WHO if (name, who) in by]
        if own:
            rate = own[0]["sgl_made"] / own[0]["sgl_seconds"]
            rows.append(
                [
                    name,
                    own[0]["programs"],
                    f"{own[0]['sgl_seconds']:.2f}",
                    f"{rate:,.0f}",
                    *(_times(ratio(by[name, who])) if (name, who) in by else "" for who in WHO),
                ]
            )
    head = ["against peers, same weights", "programs", "sgl s", "tokens/s", *(f"{who} takes" for who in WHO)]
    return table(head, rows) if rows else []


def agreement(figures: Figures) -> Iterator[list[str]]:
    """What the peers are, and how often their answers are sgl's."""
    for who in WHO:
        own = [piece for piece in figures if piece["who"] == who]
        if not own:
            continue
        versions = ", ".join(f"{name} {version}" for name, version in own[0]["versions"].items())
        lines = [f"{who}: {versions}, {own[0]['dtype']}; {own[0]['note']}"]
        for piece in own:
            said = [f"{what} {piece[key][0]} of {piece[key][1]}" for key, what in SAME.items() if piece[key][1]]
            made = (
                ""
                if piece["made"] == piece["sgl_made"]
                else f", {piece['made']:,} tokens to sgl's {piece['sgl_made']:,}"
            )
            lines.append(f"  {piece['workload']:20} {', '.join(said)}{made}")
        yield lines


def switches_table(figures: Figures) -> list[str]:
    by = costs(figures)
    rows = [
        [name, *(_times(by[name][part]) if part in by[name] else "" for part in PARTS)]
        for name in WORKLOADS
        if name in by
    ]
    return table(["sgl against itself: time with", *PARTS], rows) if rows else []


def tokens_table(figures: Figures) -> list[str]:
    rows = []
    for piece in figures:
        for name, run in piece.get("settings", {}).items():
            same, texts = run["same_decisions"], run["same_texts"]
            of = f"{same[0] + texts[0]}/{same[1] + texts[1]}"
            counts = [
                f"{run[key]:,}"
                for key in ("steps", "computed_tokens", "cached_tokens", "forced_tokens", "generated_tokens")
            ]
            rows.append(
                [piece["workload"] if name == "everything on" else "", name, f"{run['seconds']:.3f}", *counts, of]
            )
    return (
        table(["workload", "setting", "s", "steps", "computed", "cached", "forced", "generated", "same"], rows, 2)
        if rows
        else []
    )


def lost(figures: Figures) -> list[str]:
    """Where a peer is as fast, and where switching a part off makes sgl faster."""
    found = [
        f"  {name}: {who} takes {_times(value)}"
        for name, by in ratios(figures).items()
        for who, value in by.items()
        if value < 1 + NEAR
    ]
    found += [
        f"  {name}: {part} takes {_times(value)}"
        for name, by in costs(figures).items()
        for part, value in by.items()
        if value < 1 - NEAR
    ]
    return ["not ahead:", *found] if found else []


def _times(value: float) -> str:
    return f"{value:.0f}x" if value >= 10 else f"{value:.2f}x"


def table(head: list[Any], rows: list[list[Any]], left: int = 1) -> list[str]:
    """Lines of columns; the first `left` begin on the left."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
