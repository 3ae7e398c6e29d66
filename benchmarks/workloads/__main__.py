"""Workloads of the SGLang paper: sgl against transformers, outlines and guidance, and against itself with parts off.

    python -m benchmarks.workloads --short                         # sgl and transformers, small, in two minutes
    python -m benchmarks.workloads --peers PYTHON --keep           # all, as kept in benchmarks/results
    python -m benchmarks.workloads --peers PYTHON --for 50         # some pieces more of the same; again until none is
    left

PYTHON is one with outlines and guidance (pip install torch transformers outlines guidance). Pieces are kept in
build/workloads; a run goes on where the last one stopped, --fresh begins anew. Run it from the repository's root.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .every import WORKLOADS
from .ours import Ours
from .peer_calls import WHO
from .pieces import ROOT, SWITCHES, Measurer, PeerMissing, Piece, importable
from .report import keep, show

KEPT = ROOT / "build/workloads"
Figures = list[dict[str, Any]]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workloads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--short", action="store_true", help="few items, one round, transformers alone; nothing is kept"
    )
    parser.add_argument(
        "--peers", default=sys.executable, metavar="PYTHON", help="a Python that has the peers; this one if not given"
    )
    parser.add_argument(
        "--against", nargs="*", choices=(SWITCHES, *WHO), help="sgl is sgl with parts switched off; all if not given"
    )
    parser.add_argument(
        "--only",
        nargs="*",
        choices=tuple(WORKLOADS),
        default=tuple(WORKLOADS),
        metavar="WORKLOAD",
        help=", ".join(WORKLOADS),
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--for",
        type=float,
        dest="seconds",
        default=float("inf"),
        metavar="SECONDS",
        help="begin no piece after so long",
    )
    parser.add_argument("--fresh", action="store_true", help="forget the pieces of earlier runs")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/workloads.{json,txt,svg}")
    args = parser.parse_args()
    args.rounds = 1 if args.short else args.rounds
    args.against = args.against or ((SWITCHES, "transformers") if args.short else (SWITCHES, *WHO))
    return args


def main() -> None:
    args = options()
    pieces = [Piece(who, name) for who in args.against for name in args.only]
    if args.fresh:
        for piece in pieces:
            (KEPT / piece.file).unlink(missing_ok=True)
    found = (
        {}
        if args.short
        else {piece: json.loads((KEPT / piece.file).read_text()) for piece in pieces if (KEPT / piece.file).exists()}
    )
    missing = measure([piece for piece in pieces if piece not in found], found, args)
    show(list(found.values()), args.short)
    print("".join(f"\n{message}" for message in missing))
    left = len(pieces) - len(found)
    if left and not missing:
        print(f"{left} of {len(pieces)} pieces are left; run the same again")
    if args.keep:
        keep(list(found.values()))


def measure(pieces: list[Piece], found: dict[Piece, dict[str, Any]], args: argparse.Namespace) -> list[str]:
    """Measure until the time is over; returns what there is to say of peers that are missing."""
    if not pieces:
        return []
    started, missing = time.perf_counter(), {}
    with Ours() as ours, importable() as links, tqdm(pieces, unit="piece") as bar:
        measurer = Measurer(ours, args.peers, links, args.rounds, args.short)
        for piece in bar:
            if time.perf_counter() - started > args.seconds:
                break
            if piece.who in missing:
                continue
            try:
                found[piece] = measurer.measure(piece, bar)
            except PeerMissing as error:
                missing[piece.who] = str(error)
            else:
                store(piece, found[piece], args.short)
        measurer.close()
    return list(missing.values())


def store(piece: Piece, figures: dict[str, Any], short: bool) -> None:
    if short:
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    path: Path = KEPT / piece.file
    path.with_suffix(".part").write_text(json.dumps(figures, indent=1))
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main()
