"""Which experts a token goes to, and with which weights: all families' routers in one function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..spec.model_spec import RouterSpec


def routed(router: RouterSpec, top_k: int, logits: Tensor, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """logits: float32 [T, experts].  correction: float32 [experts], if the router has one.

    Returns int64 [T, top_k], best expert first, ties by the smaller number; and float32 weights [T, top_k].
    """
    if router.score == "mixer":
        return sparse_mixer(logits, top_k, router.jitter)
    if router.best_first:
        chosen = best(logits, top_k)
        weights = scored(router, logits.gather(1, chosen))
    else:
        scores = scored(router, logits)
        choice = scores if correction is None else scores + correction
        chosen = best(choice if router.groups == 1 else within_groups(router, choice), top_k)
        weights = scores.gather(1, chosen)
    if router.normalise:
        weights = weights / weights.sum(1, keepdim=True).clamp(min=router.floor)
    return chosen, weights * router.scale


def scored(router: RouterSpec, logits: Tensor) -> Tensor:
    return sigmoid(logits) if router.score == "sigmoid" else logits.softmax(1)


def sigmoid(x: Tensor) -> Tensor:
    """Its bits depend on the number alone: torch's own rounds differently at the end of a tensor."""
    return torch.stack((x, torch.zeros_like(x)), -1).softmax(-1)[..., 0]


def best(scores: Tensor, count: int) -> Tensor:
    """int64 [T, count]; the order of ties does not depend on the device or on other rows."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def within_groups(router: RouterSpec, scores: Tensor) -> Tensor:
    """scores [T, experts], with those outside of the best groups set to `outside`."""
    grouped = scores.unflatten(1, (router.groups, -1))
    ranked = grouped.topk(2 if router.group_score == "two" else 1, dim=2).values.sum(2)
    kept = torch.zeros_like(ranked, dtype=torch.bool).scatter_(1, best(ranked, router.kept_groups), True)
    return grouped.masked_fill(~kept[:, :, None], router.outside).flatten(1)


def sparse_mixer(logits: Tensor, top_k: int, jitter: float) -> tuple[Tensor, Tensor]:
    """PhiMoE's (arXiv 2409.12136): the best expert, weighted among those with close scores; then again without it."""
    left, chosen, weights = logits, [], []
    for _ in range(top_k):
        most = left.max(1, keepdim=True).values
        far = (most - left) / torch.maximum(logits.abs(), most) > 2 * jitter
        winner = best(left, 1)
        chosen.append(winner)
        weights.append(left.masked_fill(far, -math.inf).softmax(1).gather(1, winner))
        left = left.scatter(1, winner, -math.inf)
    return torch.cat(chosen, 1), torch.cat(weights, 1)
