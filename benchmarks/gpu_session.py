"""One run of the GPU benchmark: engines opened by their options, cases printed
as they end, a failure stops only itself.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_peer
import torch
from bench_results import RESULTS, cpu_name
from gpu_cases import PLAIN, Bench, Sizes, compared
from gpu_constrained import constrained
from gpu_gaps import BETWEEN_STEPS
from gpu_profile import profile
from gpu_programs import programs
from gpu_ready import ready
from gpu_report import Figure, figures_table
from gpu_rooflines import Rooflines, measure
from gpu_shapes import Shape
from gpu_work import alive, known_options

import sgl

FP8 = (
    ("fp8 weights", {"weights": "fp8"}),
    ("fp8 KV", {"kv_dtype": "fp8"}),
    ("fp8 weights and KV", {"weights": "fp8", "kv_dtype": "fp8"}),
)


def where() -> dict[str, Any]:
    """The machine, the versions, the commit (GIT_COMMIT where there is no .git)."""
    cuda = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if cuda else "none",
        "driver": _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in ("triton", "flashinfer-python", "transformers")},
        "commit": os.environ.get("GIT_COMMIT") or _said(["git", "-C", str(RESULTS), "rev-parse", "--short", "HEAD"]),
        "date": time.strftime("%Y-%m-%d"),
    }


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class Session:
    """`run()` goes through the cases that were asked for; `figures`, `texts` and `failures` hold what came of them."""

    def __init__(
        self,
        args: argparse.Namespace,
        shape: Shape,
        sizes: Sizes,
        model: Path,
        options: dict[str, Any],
        device: torch.device,
    ) -> None:
        self.args, self.shape, self.sizes, self.model = args, shape, sizes, model
        self.options, self.device = options, device
        self.figures: list[Figure] = []
        self.failures: dict[str, str] = {}
        self.texts: list[str] = []
        self.infos: dict[str, Any] = {}
        self.anchored = shape.name == "llama8b" and args.layers is None and device.type == "cuda"
        self.roof = Rooflines(float("nan"), float("nan"), {1: float("nan")})

    def run(self) -> None:
        self.attempt("rooflines", self._rooflines)
        self._free()
        if "1" in self.args.cases:
            self.attempt(
                "1",
                lambda: ready(self.model, self.options, self.shape, self.anchored, self.args.checkpoint, self.device),
            )
        mine = self._default_engine()
        if "6" in self.args.cases:
            self._with(
                "jump_forward off", {"jump_forward": False}, lambda bench: constrained(bench, "jump_forward off")
            )
        for label, more, target in self._variants():
            base = {f.case: f.value for f in reversed(self.figures) if f.case in ("2", "3")}
            self._with(label, more, lambda bench, x=label, b=base, t=target: compared(bench, bench.engine, x, b, t))
        if "8" in self.args.cases and mine:
            self.attempt("8", lambda: gpu_peer.compared(mine, gpu_peer.theirs(self.shape, self.device, tuple(mine))))
            self._free()

    # the parts

    def _rooflines(self) -> list[Figure]:
        self.roof = measure(self.shape, self.device, 0.3 if self.args.quick or self.shape.small else 1.0)
        found = [
            Figure("roof", "copy, read and written", self.roof.copy / 1e12, "TB/s"),
            Figure("roof", "products of the layers at 4,096 rows, sustained", self.roof.matmul / 1e12, "TFLOP/s"),
        ]
        return found + [
            Figure("roof", f"linear layers of a decode step, {rows} rows", 1e3 * s, "ms")
            for rows, s in self.roof.linears.items()
        ]

    def _default_engine(self) -> dict[tuple[int, int, int], Any]:
        """The cases of the default options on one engine; on a new one after a failure that ended it."""
        mine: dict[tuple[int, int, int], Any] = {}
        tasks = self._tasks(mine)

        def as_many_as_it_lives(bench: Bench) -> list[Figure]:
            while tasks:
                name, work = tasks.pop(0)
                self.attempt(name, functools.partial(work, bench))
                if not alive(bench.engine):
                    break
            return []

        while tasks:
            left = len(tasks)
            self._with("default", {}, as_many_as_it_lives)
            if len(tasks) == left:
                break  # it does not even open
        return mine

    def _tasks(self, mine: dict[tuple[int, int, int], Any]) -> list[tuple[str, Callable[[Bench], list[Figure]]]]:
        cases = self.args.cases
        base = ("2", "3") if self._wants("deterministic", "fp8") or self.args.attention else ()
        tasks: list[tuple[str, Callable[[Bench], list[Figure]]]] = [
            (c, work) for c, work in PLAIN.items() if c in cases or c in base
        ]
        if "idle" in cases:
            tasks += [
                (f"idle {n}", lambda bench, n=n: self._idle(bench, n)) for n in dict.fromkeys((1, self.sizes.crowd[0]))
            ]
        if "6" in cases:
            tasks.append(("6", lambda bench: constrained(bench, "jump_forward on")))
        if "7" in cases:
            tasks.append(("7", programs))
        if "8" in cases:
            sizes = gpu_peer.TINY_SIZES if self.shape.small else gpu_peer.SIZES
            tasks.append(("8 ours", lambda bench: mine.update(gpu_peer.ours(bench, sizes)) or []))
        return tasks

    def _idle(self, bench: Bench, batch: int) -> list[Figure]:
        found = profile(bench.engine, batch, self.shape.vocab, length=min(512, self.shape.context // 4))
        self.texts.append(found.text())
        print(self.texts[-1], flush=True)
        if not found.kernels:
            return [
                Figure("idle", f"batch {batch}: a decode step", found.step_ms, "ms", roof=1e3 * self.roof.step(batch))
            ]
        note = f"{100 * found.busy.idle_share:.1f}% in all gaps, those inside a graph too"
        per_step = found.busy.busy / 1e6 / found.steps
        return [
            Figure(
                "idle",
                f"batch {batch}: a decode step",
                found.step_ms,
                "ms",
                roof=1e3 * self.roof.step(batch),
                note=f"kernels {per_step:.3f} ms of it",
            ),
            Figure(
                "idle",
                f"batch {batch}: no kernel between steps",
                100 * found.busy.share_of_gaps(BETWEEN_STEPS),
                "% idle",
                target=3.0,
                note=note,
            ),
        ]

    def _variants(self) -> Iterator[tuple[str, dict[str, Any], float | None]]:
        """(label, options, wanted percentage of the default) of the engines that cases 2 and 3 are run on again."""
        if "deterministic" in self.args.cases:
            yield "deterministic", {"deterministic": True}, 70.0
        if "fp8" in self.args.cases:
            yield from ((label, options, None) for label, options in FP8)
        yield from ((name, {"attention": name}, None) for name in self.args.attention.split(",") if name)

    # engines and cases

    def _with(self, label: str, more: dict[str, Any], work: Callable[[Bench], list[Figure]]) -> None:
        """Run `work` on an engine opened with these options; one that lacks them is reported, not failed."""
        if known_options(**more) is None:
            self.say(f"[{label}] this engine has no option {', '.join(more)}: left out")
            return
        self.attempt(label, lambda: self._on_engine(label, more, work))
        self._free()

    def _on_engine(self, label: str, more: dict[str, Any], work: Callable[[Bench], list[Figure]]) -> list[Figure]:
        with self._engine(label, more) as engine:
            return work(Bench(engine, self.shape, self.sizes, self.roof, self.anchored, self.args.temperature))

    @contextmanager
    def _engine(self, label: str, more: dict[str, Any]) -> Iterator[sgl.Engine]:
        started = time.perf_counter()
        engine = sgl.Engine(self.model, **{**self.options, **more})
        self.infos[label] = {k: v for k, v in engine.info().items() if k != "model_path"}
        self.say(
            f"engine ({label}) in {time.perf_counter() - started:.1f} s: {json.dumps(self.infos[label], default=str)}"
        )
        try:
            yield engine
        finally:
            engine.close()

    def attempt(self, name: str, work: Callable[[], list[Figure]]) -> None:
        """Figures are printed and kept at once; an error is printed and the rest goes on."""
        started = time.perf_counter()
        try:
            found = work()
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"
            print(f"[{name}] FAILED\n{traceback.format_exc()}", flush=True)
            found = []
        self.figures += found
        for figure in found:
            print(figure.line(), flush=True)
        if found:
            print(f"    ({name}: {time.perf_counter() - started:.1f} s)", flush=True)
        self.write(self.args.out)

    def _wants(self, *cases: str) -> bool:
        return bool(set(cases) & set(self.args.cases))

    def _free(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # what is kept

    def say(self, text: str) -> None:
        self.texts.append(text + "\n")
        print(text, flush=True)

    def as_dict(self) -> dict[str, Any]:
        return {
            "machine": where(),
            "options": self.options,
            "engines": self.infos,
            "figures": [figure.as_dict() for figure in self.figures],
            "failures": self.failures,
        }

    def write(self, path: Path | None) -> None:
        if path is not None:
            path.write_text(json.dumps(self.as_dict(), indent=1, default=str) + "\n")

    def finish(self) -> None:
        table = figures_table(self.figures)
        print("\n" + table)
        for name, error in self.failures.items():
            print(f"FAILED {name}: {error[:300]}")
        self.write(self.args.out)
        if self.args.keep:
            self.write(RESULTS / f"gpu_{self.shape.name}.json")
            head = "".join(f"{key}: {value}\n" for key, value in where().items())
            lines = "".join(figure.line() + "\n" for figure in self.figures)
            (RESULTS / f"gpu_{self.shape.name}.txt").write_text("\n".join([head, table, lines, *self.texts]))
