"""The four plain cases: one sequence, a crowd at once, a shared prefix, prefill alone. Figures for an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_report import Figure
from gpu_rooflines import Rooflines
from gpu_shapes import Shape
from gpu_work import Run, generate, median_rate, middle, prompts, repeated, spread

import sgl


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the cases: (sequences, shared, own, new tokens)."""

    single: tuple[int, int, int, int] = (1, 0, 128, 256)
    crowd: tuple[int, int, int, int] = (256, 0, 512, 128)
    shared: tuple[int, int, int, int] = (256, 3000, 64, 32)
    prefill: tuple[int, int, int, int] = (64, 0, 2048, 1)
    batches: tuple[int, ...] = (1, 8, 64, 256)  # of the constrained case
    constrained_tokens: int = 96
    programs: int = 64
    thought: int = 32  # tokens
    runs: int = 3


TINY = Sizes((1, 0, 16, 8), (4, 0, 24, 4), (4, 100, 8, 4), (3, 0, 64, 1), (1, 4), 24, 2, 6, 2)


@dataclass(frozen=True, slots=True)
class Bench:
    """What the cases share. anchored: the engine, shape and sizes are those of the published figures."""

    engine: sgl.Engine
    shape: Shape
    sizes: Sizes
    roof: Rooflines
    anchored: bool
    temperature: float = 0.0

    def on(self, engine: sgl.Engine) -> Bench:
        return replace(self, engine=engine, anchored=False)

    def known(self, figure: float) -> float | None:
        """A published number, where it is comparable."""
        return figure if self.anchored else None


def measured(bench: Bench, size: tuple[int, int, int, int], runs: int | None = None) -> list[Run]:
    count, shared, own, new = size

    def work(seed: int) -> Run:
        return generate(bench.engine, prompts(count, own, bench.shape.vocab, seed, shared), new, bench.temperature)

    return repeated(runs or bench.sizes.runs, work)


def bound(bench: Bench, size: tuple[int, int, int, int]) -> float:
    """Seconds that the card needs at least: the prompts' products at the measured matmul rate (without attention), the
    linear layers of the decode steps in one graph, and each step's distinct keys and values once at the copy's rate."""
    count, shared, own, new = size
    prefill = (shared + count * own) * bench.shape.flops / bench.roof.matmul
    kv = bench.shape.seen_bytes(count, shared, own + new / 2) / bench.roof.copy
    return prefill + (new - 1) * (bench.roof.step(count) + kv)


def single(bench: Bench) -> list[Figure]:
    """Case 2. The anchor counts the whole request, so does the first figure."""
    size = bench.sizes.single
    runs = measured(bench, size)
    first = middle(measured(bench, (*size[:3], 1))).seconds
    tokens, roof = size[3], 1 / bench.roof.step(1)
    rate = (tokens - 1) / (middle(runs).seconds - first)
    what = f"one sequence, {size[2]} in, {tokens} out"
    return [
        Figure("2", what, median_rate(runs), "tok/s", bench.known(203.7), bench.known(240), roof, _times(runs)),
        Figure(
            "2",
            f"{what}: decode alone",
            rate,
            "tok/s",
            roof=roof,
            note=f"first token after {1e3 * first:.1f} ms, {1e3 / rate:.3f} ms a step",
        ),
    ]


def crowd(bench: Bench) -> list[Figure]:
    size = bench.sizes.crowd
    runs = measured(bench, size)
    what, roof = f"{size[0]} x ({size[2]} in, {size[3]} out) at once", size[0] * size[3] / bound(bench, size)
    return [Figure("3", what, median_rate(runs), "tok/s", bench.known(6835), bench.known(7900), roof, _times(runs))]


def shared(bench: Bench) -> list[Figure]:
    size = bench.sizes.shared
    runs = measured(bench, size)
    what = f"{size[0]} x ({size[1]:,} shared + {size[2]} in, {size[3]} out), cold"
    return [
        Figure(
            "4", what, middle(runs).seconds, "s", bench.known(1.53), bench.known(1.25), bound(bench, size), _times(runs)
        )
    ]


def prefill(bench: Bench) -> list[Figure]:
    size = bench.sizes.prefill
    runs = measured(bench, size)
    tokens, roof = size[0] * size[2], bench.roof.matmul / bench.shape.flops
    what = f"prefill {size[0]} x {size[2]:,}"
    return [
        Figure(
            "5",
            what,
            tokens / middle(runs).seconds,
            "tok/s",
            bench.known(42_400),
            bench.known(46_000),
            roof,
            _times(runs),
        )
    ]


PLAIN: dict[str, Callable[[Bench], list[Figure]]] = {"2": single, "3": crowd, "4": shared, "5": prefill}


def compared(
    bench: Bench, engine: sgl.Engine, label: str, base: dict[str, float], target: float | None = None
) -> list[Figure]:
    """Cases 2 and 3 on another engine, as a share of `base`, the default's figures by case."""
    figures = []
    for case in ("2", "3"):
        found = PLAIN[case](bench.on(engine))[0]
        found.case, found.what = f"{case} {label}", found.what
        figures.append(found)
        if base.get(case):
            figures.append(
                Figure(
                    f"{case} {label}", "of the default in this run", 100 * found.value / base[case], "%", target=target
                )
            )
    return figures


def _times(runs: list[Run]) -> str:
    return (
        f"median of {len(runs)}: {', '.join(f'{run.seconds:.3f}' for run in runs)} s, spread {100 * spread(runs):.0f}%"
    )
