"""Which experts a token goes to and with which weights: a product in float32, then the selection.

The reference is models/reference/reference_experts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..launch.programmatic_launch import launched
from ..residual_norm import NormWeights
from . import expert_routing_kernels as kernels

FEW_ROWS = 8  # up to which each has separate programs
MANY_ROWS = 512  # from here on a library's product is faster
NUMBERS = 8192  # of the weight that a program of a row holds
PRECISION = "tf32x3"  # of products of large batches: as exact as float32 by three products


@dataclass(frozen=True, slots=True)
class RouterWeights:
    """A router. weight: [count, hidden], float32 or of the activations' type; bias, correction: float32 [count].

    The others as of `spec.Router`.
    counts: int64 [count], to which is added how often each expert was chosen.
    counters: int32 [FEW_ROWS], for the kernels only, zeros.
    fixed: the bits of a row do not depend on the number of rows.
    """

    weight: Tensor
    bias: Tensor | None
    correction: Tensor | None
    top_k: int
    options: dict[str, Any]
    counts: Tensor | None
    counters: Tensor
    fixed: bool = False


def route(
    x: Tensor,
    routing: RouterWeights,
    slots: Tensor | None = None,
    norm: NormWeights | None = None,
    overlap: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x [T, hidden] the experts int32 [T, top_k] and their weights float32 [T, top_k]; before them x itself.

    slots: [T]; rows whose slot is 0 are padding, which is not counted.
    norm: for up to FEW_ROWS rows that are not normed yet; an RMS norm, whose result is returned as x.  overlap: see
        `overlap`.
    """
    if len(x) <= FEW_ROWS and not routing.fixed:
        return _route_few(x, routing, slots, norm, overlap)
    assert norm is None
    scores = logits(x, routing.weight, routing.bias, routing.fixed)
    chosen = choose(
        scores,
        routing.top_k,
        correction=routing.correction,
        counts=routing.counts,
        slots=slots,
        overlap=overlap,
        **routing.options,
    )
    return x, *chosen


def _route_few(
    x: Tensor, routing: RouterWeights, slots: Tensor | None, norm: NormWeights | None, overlap: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, count = len(x), len(routing.weight)
    y = x if norm is None else torch.empty_like(x, memory_format=torch.contiguous_format)
    scores = torch.empty(rows, count, dtype=torch.float32, device=x.device)
    chosen, weights = _choices(scores, routing.top_k)
    given, numbers, constants = _arguments(
        scores,
        routing.top_k,
        chosen,
        weights,
        correction=routing.correction,
        counts=routing.counts,
        slots=slots,
        **routing.options,
    )
    if rows:
        weight, eps = (x, 0.0) if norm is None else (norm.weight, norm.eps)
        bias = routing.weight if routing.bias is None else routing.bias
        grid, cut = _cut(x, count)
        kernels.score_rows[grid](
            x,
            weight,
            routing.weight,
            bias,
            y,
            scores,
            routing.counters,
            *given,
            x.stride(0),
            count,
            eps,
            *numbers,
            BIASED=routing.bias is not None,
            NORMED=norm is not None,
            CHOOSING=True,
            **constants,
            **cut,
            **launched(overlap),
        )
    return y, chosen, weights


def logits(x: Tensor, weight: Tensor, bias: Tensor | None = None, fixed: bool = False, overlap: bool = False) -> Tensor:
    """x [T, hidden], weight [count, hidden], float32 or of x's type, bias float32 [count] -> float32 [T, count], sums
    of float32.

    fixed: the bits of a row do not depend on how many there are.  overlap: see `overlap`.
    """
    (rows, size), count = x.shape, weight.shape[0]
    if not fixed and rows >= (MANY_ROWS if weight.dtype == torch.float32 else FEW_ROWS + 1):
        return _by_library(x, weight, bias)
    scores = torch.empty(rows, count, dtype=torch.float32, device=x.device)
    added = weight if bias is None else bias
    if rows > FEW_ROWS or fixed:
        grid = triton.cdiv(count, 16), triton.cdiv(rows, 16)
        kernels.score_tiles[grid](
            x,
            weight,
            added,
            scores,
            x.stride(0),
            rows,
            count,
            INPUTS=size,
            ROWS=16,
            EXPERTS=16,
            DEPTH=128,
            BIASED=bias is not None,
            PRECISION=PRECISION,
        )
    elif rows:
        given, numbers, constants = _arguments(scores, 1, scores, scores)
        grid, cut = _cut(x, count)
        kernels.score_rows[grid](
            x,
            x,
            weight,
            added,
            x,
            scores,
            scores,
            *given,
            x.stride(0),
            count,
            0.0,
            *numbers,
            BIASED=bias is not None,
            NORMED=False,
            CHOOSING=False,
            **constants,
            **cut,
            **launched(overlap),
        )
    return scores


def _by_library(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not x.is_cuda or weight.dtype == torch.float32:
        return torch.nn.functional.linear(x.float(), weight.float(), bias)
    scores = torch.mm(x, weight.T, out_dtype=torch.float32)
    return scores if bias is None else scores.add_(bias)


def choose(scores: Tensor, top_k: int, *, overlap: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    """Of logits float32 [T, count] the experts int32 [T, top_k] and their weights float32 [T, top_k].

    options: of `_arguments`.
    """
    chosen, weights = _choices(scores, top_k)
    given, numbers, constants = _arguments(scores, top_k, chosen, weights, **options)
    if len(scores):
        warps = 1 if constants["SIZE"] <= 256 else 4
        kernels.choose[(len(scores),)](
            scores, *given, scores.shape[1], *numbers, **constants, num_warps=warps, **launched(overlap)
        )
    return chosen, weights


def _choices(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    shape, device = (len(scores), top_k), scores.device
    return torch.empty(shape, dtype=torch.int32, device=device), torch.empty(shape, dtype=torch.float32, device=device)


def _arguments(
    scores: Tensor,
    top_k: int,
    chosen: Tensor,
    weights: Tensor,
    *,
    score: str = "softmax",
    best_first: bool = False,
    correction: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    two_best: bool = True,
    outside: float = 0.0,
    normalise: bool = False,
    floor: float = 0.0,
    scale: float = 1.0,
    jitter: float = 0.0,
    counts: Tensor | None = None,
    slots: Tensor | None = None,
) -> tuple[tuple[Tensor, ...], tuple[float, ...], dict[str, Any]]:
    """The kernels' arguments for a selection: tensors, numbers, constants.

    Options as of `spec.Router`; counts, slots: see `RouterWeights`, `route`.
    """
    given = (
        scores if correction is None else correction,
        chosen,
        weights,
        chosen if counts is None else counts,
        chosen if slots is None else slots,
    )
    constants = {
        "TOP": top_k,
        "LANES": triton.next_power_of_2(top_k),
        "SIZE": triton.next_power_of_2(scores.shape[1]),
        "MIXER": score == "mixer",
        "SIGMOID": score == "sigmoid",
        "BEST_FIRST": best_first,
        "CORRECTED": correction is not None,
        "GROUPS": groups,
        "KEPT": kept_groups,
        "TWO": two_best,
        "NORMALISE": normalise,
        "COUNTED": counts is not None,
        "SLOTTED": slots is not None,
    }
    return given, (outside, floor, scale, jitter), constants


def _cut(x: Tensor, count: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and constants of products of small batches."""
    block = triton.next_power_of_2(x.shape[1])
    experts = max(1, min(4, NUMBERS // block))
    return (triton.cdiv(count, experts), len(x)), {
        "INPUTS": x.shape[1],
        "BLOCK": block,
        "EXPERTS": experts,
        "num_warps": 4 if block * experts <= NUMBERS else 8,
    }
