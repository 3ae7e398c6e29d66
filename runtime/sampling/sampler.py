"""From a batch of logits to one token a row, with the errors of single rows kept to those rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.sampling.sampling_batch import (
    BIASED,
    PENALIZED,
    SIGMA_CUT,
    WAITING,
    BatchTensors,
    SamplingBatch,
    SamplingNoiseTensors,
)
from sgl.runtime.sampling.sampling_noise import column_hash, exponential_race, noise_row_keys
from sgl.runtime.sampling.token_logprobs import TokenLogprobs, top_logprobs, within_masks
from sgl.runtime.sampling.token_masks import MaskExpander


@dataclass(slots=True)
class SampledTokens:
    """One step's tokens.

    Attributes:
        ids: a token a row; -1 where `errors` has the row.
        logprobs: raw, or among what the mask allows, a float a row; None for rows that did not ask, or when none did.
        top: per row the likeliest (logprob, id) pairs, likeliest first, without the impossible ones; None likewise.
        errors: row -> what is wrong with it.
    """

    ids: list[int]
    logprobs: list[float | None] | None = None
    top: list[TokenLogprobs | None] | None = None
    errors: dict[int, str] = field(default_factory=dict)


Places = Sequence[int] | np.ndarray | Tensor


class LaunchesSampling(Protocol):
    """What the engine needs of a sampler."""

    vocab_size: int | None

    def launch(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Sequence[int],
        mask_rows: Sequence[np.ndarray | None] | None = None,
        last: Tensor | None = None,
        places: Places | None = None,
    ) -> Callable[[], SampledTokens]:
        """Queue the choice of one token for every row; the returned function waits for it alone.

        Args:
            logits: any float dtype [n, V], last dimension contiguous; not changed.
            batch: n rows.
            positions: index in its sequence of each token to be sampled; the counter of the noise.
            mask_rows: packed int32 [ceil(V / 32)] a row, or None for rows (or a batch) without constraint.
            last: int32 on the device; the token of row i also goes to `last[places[i]]`, 0 for a row in error.
            places: n indices into `last`, on the host or on the device; needed when `last` is given.
        """
        ...

    def warm(self, dtype: torch.dtype, width: int) -> None: ...


class Sampler:
    """Chooses tokens; keeps uploaded masks between steps. `vocab_size` hides the padding columns beyond it."""

    def __init__(self, vocab_size: int | None = None) -> None:
        self.vocab_size = vocab_size
        self._expander: MaskExpander | None = None
        self._columns = column_hash(0)
        self.kernels: Any = cpu_kernels.kernels  # None: by torch on a CPU too

    def sample(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Sequence[int],
        mask_rows: Sequence[np.ndarray | None] | None = None,
    ) -> SampledTokens:
        """One token for every row. A row's choice depends on nothing but the row.

        Args:
            logits: any float dtype [n, V]; not changed.
            batch: n rows.
            positions: index in its sequence of each token to be sampled; the counter of the noise.
            mask_rows: packed int32 [ceil(V / 32)] a row, or None for rows (or a batch) without constraint.
        """
        raw, logits = logits, logits.float()
        if self.vocab_size is not None and logits.shape[1] > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        masks = mask_rows if mask_rows is not None and any(m is not None for m in mask_rows) else None
        if self.kernels is not None and logits.device.type == "cpu" and len(batch):
            ids, peaks = self._compiled(logits, batch, positions, masks)
        else:
            best, largest = self._chosen(logits, batch, positions, masks)
            ids, peaks = best.tolist(), largest.tolist()
        samples = SampledTokens(ids)
        if not all(map(isfinite, peaks)):
            mark_errors(samples, np.array(peaks, np.float32))
        if batch.scored:
            self._add_logprobs(samples, raw, batch, batch.scored_within(mask_rows), logits.shape[1])
        return samples

    @torch.inference_mode()
    def launch(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Sequence[int],
        mask_rows: Sequence[np.ndarray | None] | None = None,
        last: Tensor | None = None,
        places: Places | None = None,
    ) -> Callable[[], SampledTokens]:
        """`sample`, done at once: for a caller that has other things to do before it needs the tokens."""
        samples = self.sample(logits, batch, positions, mask_rows)
        if last is not None:
            last[torch.as_tensor(places, dtype=torch.int64, device=last.device)] = torch.tensor(
                [max(i, 0) for i in samples.ids], dtype=last.dtype, device=last.device
            )
        return lambda: samples

    def warm(self, dtype: torch.dtype, width: int) -> None:
        """There is nothing to compile here."""

    def _compiled(
        self, logits: Tensor, batch: SamplingBatch, positions: Sequence[int], masks: Sequence[np.ndarray | None] | None
    ) -> tuple[list[int], list[float]]:
        """What `_chosen` returns, by the kernel of `csrc/sampling/token_sampling.h`."""
        width = logits.shape[1]
        if batch.flags & (PENALIZED | BIASED | SIGMA_CUT):
            logits = adjust(logits, batch.tensors(width, logits.device), masks, owned=False)
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        bans = [row.bans() for row in batch.rows] if batch.flags & WAITING else None
        if len(self._columns) != width:
            self._columns = column_hash(width)
        found: tuple[list[int], list[float]] = self.kernels.sample(
            logits.data_ptr(),
            logits.stride(0),
            width,
            batch.words,
            self._columns,
            list(positions),
            None if masks is None else list(masks),
            bans,
        )
        return found

    def _chosen(
        self, logits: Tensor, batch: SamplingBatch, positions: Sequence[int], masks: Sequence[np.ndarray | None] | None
    ) -> tuple[Tensor, np.ndarray]:
        """The token of each row, int64 [n], and its largest adjusted logit, float32 [n]."""
        tensors = batch.tensors(logits.shape[1], logits.device)
        adjusted = self._adjust(logits, tensors, masks)
        best, peaks = _argmax(adjusted)
        if tensors.race is not None:
            _place(best, _draw(adjusted, tensors.race, positions), tensors.race.indices)
        return best, peaks

    def _adjust(self, logits: Tensor, tensors: BatchTensors, masks: Sequence[np.ndarray | None] | None) -> Tensor:
        """Logits after penalties, biases, bans and masks; the given tensor itself when there are none."""
        if masks is not None:
            adjusted = self._masks(tensors).expand(masks)
            adjusted = adjusted.add_(logits) if adjusted.is_contiguous() else adjusted + logits
            return adjust(adjusted, tensors, masks, owned=True)
        return adjust(logits, tensors, None, owned=False)

    def _add_logprobs(
        self, samples: SampledTokens, logits: Tensor, batch: SamplingBatch, masks: dict[int, np.ndarray], width: int
    ) -> None:
        every = len(batch.scored) == len(batch)
        rows = logits if every else logits[torch.tensor(batch.scored, device=logits.device)]
        if masks:
            rows = within_masks(rows, masks, self._masks(batch.tensors(width, logits.device)).expand)
        ids = [[max(samples.ids[i], 0)] for i in batch.scored]
        pairs, tops = top_logprobs(rows, ids, batch.top, self.vocab_size)
        place_logprobs(samples, batch, [logprob for ((logprob, _),) in pairs], tops)

    def _masks(self, tensors: BatchTensors) -> MaskExpander:
        if self._expander is None or (self._expander.width, self._expander.device) != tensors.home:
            self._expander = MaskExpander(*tensors.home)
        return self._expander


def adjust(logits: Tensor, tensors: BatchTensors, masks: Sequence[np.ndarray | None] | None, owned: bool) -> Tensor:
    """Float32 logits after penalties, biases, bans and top-n-sigma.

    A changed copy unless `owned`; the given tensor itself if nothing is asked.
    """
    active = tensors.min_tokens.active(masks or [None] * len(logits)) if tensors.min_tokens else []
    if not (tensors.penalties or tensors.bias or active or tensors.top_n_sigma):
        return logits
    adjusted = logits if owned else logits.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    if tensors.penalties:
        tensors.penalties.apply(adjusted)
    if tensors.bias:
        tensors.bias.apply(adjusted)
    if tensors.min_tokens and active:
        tensors.min_tokens.apply(adjusted, active)
    if tensors.top_n_sigma:
        tensors.top_n_sigma.apply(adjusted, masks)
    return adjusted


def _argmax(logits: Tensor) -> tuple[Tensor, np.ndarray]:
    """First largest column of each row, int64 [n], and its value, float32 [n]; NaN counts as largest."""
    if logits.is_cuda:
        peaks, best = logits.max(-1)
        return best, peaks.cpu().numpy()
    values = logits.numpy()
    columns = values.argmax(-1)
    return torch.from_numpy(columns), values[np.arange(len(columns)), columns]


def _allows(mask: np.ndarray | None, token: int) -> bool:
    """Whether a packed row has the token's bit; columns after its words are not allowed."""
    return mask is None or (token >> 5 < len(mask) and bool(int(mask[token >> 5]) >> (token & 31) & 1))


def _place(best: Tensor, drawn: Tensor, indices: Tensor | None) -> None:
    if indices is None:
        best.copy_(drawn)
    else:
        best[indices] = drawn


def _draw(logits: Tensor, params: SamplingNoiseTensors, positions: Sequence[int]) -> Tensor:
    """Sample the random rows of `logits` (float32 [n, V]); int64 [m]."""
    if params.indices is not None:
        logits = logits.index_select(0, params.indices)
    counters = [positions[i] for i in params.rows]
    keys = torch.from_numpy(noise_row_keys(params.words, counters)).to(logits.device)
    p = torch.softmax(logits * params.inverse_temperature, -1)
    if params.min_p is not None:
        p.mul_(torch.ge(p, params.min_p * p.amax(-1, keepdim=True), out=torch.empty_like(p)))
    finish = exponential_race(keys, params.columns).div_(p)
    chosen = _winner(finish)
    if params.truncated:
        _reject(chosen, p, finish, params)
    return chosen


def _reject(chosen: Tensor, p: Tensor, finish: Tensor, params: SamplingNoiseTensors) -> None:
    """Replace winners outside top-k and top-p by the winner of those inside; `chosen` changes in place.

    A token is inside when fewer than k tokens, of less than top_p together, are likelier: ties at the edge stay in. A
    rejected winner shuts out all that are no likelier than itself, so a few rounds over fewer and fewer rows do what
    sorting would do.
    """
    top_k, top_p = params.top_k, params.top_p
    rows: Tensor | None = None
    winner = chosen
    while True:
        level = p.gather(1, winner.unsqueeze(1))
        likelier = torch.gt(p, level, out=torch.empty_like(p))
        count, mass = likelier.sum(-1, keepdim=True), torch.linalg.vecdot(p, likelier).unsqueeze(1)
        rejected = ((count >= top_k) | (mass >= top_p)).squeeze(1).nonzero().squeeze(1)
        if not len(rejected):
            return
        p, likelier, finish = p[rejected], likelier[rejected], finish[rejected]
        top_k, top_p = top_k[rejected], top_p[rejected]
        rows = rejected if rows is None else rows[rejected]
        finish.div_(likelier)  # a negative number over 0 is -inf: out of the race
        winner = _winner(finish)
        chosen[rows] = winner


def _winner(finish: Tensor) -> Tensor:
    return finish.argmax(-1) if finish.is_cuda else torch.from_numpy(finish.numpy().argmax(-1))


NO_TOKEN = "no token is allowed here: grammar, logit_bias and min_tokens together exclude every one; relax one of them"


def mark_errors(samples: SampledTokens, peaks: np.ndarray) -> None:
    """Note what is wrong with the rows whose largest adjusted logit, float32 [n], is not finite."""
    for row in np.flatnonzero(~np.isfinite(peaks)).tolist():
        samples.ids[row] = -1
        samples.errors[row] = (
            NO_TOKEN
            if peaks[row] == -np.inf
            else f"the model gave logits of {peaks[row]}; the checkpoint or the dtype is at fault"
        )


def place_logprobs(
    samples: SampledTokens, batch: SamplingBatch, logprobs: list[float], tops: list[TokenLogprobs]
) -> None:
    """Give the rows that asked their logprobs; both lists follow `batch.scored`."""
    samples.logprobs, samples.top = [None] * len(batch), [None] * len(batch)
    for index, logprob, top in zip(batch.scored, logprobs, tops, strict=True):
        samples.logprobs[index] = logprob
        samples.top[index] = [pair for pair in top[: batch.rows[index].params.top_logprobs] if pair[0] > -inf]
