"""The fit of a calibration, by Newton's method with the Fisher information, and what it is worth on rows left out."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

SPREAD_OF_BIASES = 2.0  # standard deviation of the normal prior on a bias, in nats; on log(scale) it is 1
STEPS, SMALL = 100, 1e-9


def fit(logs: Array, right: Indices, biases: bool = True) -> tuple[float, Array]:
    """The scale and the biases [labels] that make `right` [rows] most likely a posteriori.

    logs: log-probabilities [rows, labels].
    """
    count = logs.shape[1]
    wanted = np.eye(count)[right]
    at = np.zeros(count + 1)  # log(scale), then the biases
    prior = np.array([1.0, *[SPREAD_OF_BIASES**-2] * count])
    value = _loss(at, logs, right, prior)
    for _ in range(STEPS):
        gradient, curvature = _derivatives(at, logs, wanted, prior)
        if not biases:
            gradient[1:] = 0.0
        step = np.linalg.solve(curvature, gradient) if biases else gradient / curvature[0, 0]
        while (new := _loss(at - step, logs, right, prior)) > value:
            step = step / 2
        at, value, before = at - step, new, value
        if before - value < SMALL:
            break
    return float(np.exp(at[0])), at[1:] - at[1:].mean()


def held_out(logs: Array, right: Indices, biases: bool, parts: int) -> Array:
    """The calibrated log-probabilities of each row, by a fit to the rows of the other parts. Row i is in part i modulo
    `parts`."""
    result = np.empty_like(logs)
    for part in range(parts):
        out = np.arange(len(logs)) % parts == part
        scale, bias = fit(logs[~out], right[~out], biases)
        result[out] = log_softmax(scale * logs[out] + bias)
    return result


def _derivatives(at: Array, logs: Array, wanted: Array, prior: Array) -> tuple[Array, Array]:
    scaled = np.exp(at[0]) * logs
    probs = np.exp(log_softmax(scaled + at[1:]))
    rest = probs - wanted
    gradient = np.array([(rest * scaled).sum(), *rest.sum(0)]) + prior * at
    mean = (probs * scaled).sum(1, keepdims=True)
    curvature = np.diag(prior)
    curvature[0, 0] += (probs * (scaled - mean) ** 2).sum()
    curvature[0, 1:] = curvature[1:, 0] = (probs * (scaled - mean)).sum(0)
    curvature[1:, 1:] += np.diag(probs.sum(0)) - probs.T @ probs
    return gradient, curvature


def _loss(at: Array, logs: Array, right: Indices, prior: Array) -> float:
    likely = log_softmax(np.exp(at[0]) * logs + at[1:])[np.arange(len(right)), right]
    return float((prior * at**2).sum() / 2 - likely.sum())


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result
