"""Linear attention with a decaying state, with the delta rule or without it: gated delta net, KDA and Mamba 2.

A head keeps S [key, value]. With a token it becomes e^g S + k u^T, and the output is S^T q; u is the token's value v,
or by the delta rule beta (v - (e^g S)^T k), which overwrites what k had stored before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .ragged_sequences import RaggedSequences, ScanChunks

CHUNK, CHANNEL_CHUNK = (
    64,
    16,
)  # tokens that are multiplied at once; with a decay for each channel pairs of tokens cannot be factored


class LinearAttention(NamedTuple):
    """The inputs of a batch's tokens, float32.

    q, k: [T, key heads, key], each for as many heads in a row.  v: [T, heads, value].  decay: [T, heads, 1], or of each
        channel [T, heads, key]; g, not above 0.
    beta: [T, heads, 1]; None: without the delta rule.
    unit: queries and keys are normalized to length 1, with this added to its square; None: they are used as they are.
    scale: of the queries.
    times: [T, heads, 1], factor of values.  skip: [heads], the share of a value that is added to the output.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor | None = None
    unit: float | None = None
    scale: float = 1.0
    times: Tensor | None = None
    skip: Tensor | None = None

    def plain(self) -> LinearAttention:
        """The same with only the first five fields, without the skip path: see `passed`."""
        q, k = (self.q, self.k) if self.unit is None else (_unit(each, self.unit) for each in (self.q, self.k))
        return LinearAttention(
            q if self.scale == 1 else q * self.scale,
            k,
            self.v if self.times is None else self.v * self.times,
            self.decay,
            self.beta,
        )

    def passed(self, out: Tensor) -> Tensor:
        """The output of the state, plus the skip path."""
        return out if self.skip is None else out + self.v * self.skip[:, None]

    def scan(self, state: Tensor, ragged: RaggedSequences) -> tuple[Tensor, Tensor]:
        """[T, heads, value] and the state after each sequence. state: [S, heads, key, value], before them."""
        out, left = self.plain()._scan(state, ragged)
        return self.passed(out), left

    def _scan(self, state: Tensor, ragged: RaggedSequences) -> tuple[Tensor, Tensor]:
        if ragged.single:
            return self.advanced(state)
        parts, out = ragged.parts, torch.empty_like(self.v)
        if not len(parts.ones):
            return self._by_chunks(state, ragged)
        state = state.clone()
        out[parts.one_rows], state[parts.ones] = self._rows(parts.one_rows).advanced(state[parts.ones])
        out[parts.longer_rows], state[parts.longer] = self._rows(parts.longer_rows)._by_chunks(
            state[parts.longer], parts.own
        )
        return out, state

    def advanced(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """`scan` of sequences of one token each, in the simple case."""
        q, k, u, decay, beta = self._per_head()[:5]
        state = state * decay.exp()[..., None]
        if beta is not None:
            u = (u - _read(state, k)) * beta
        state = state + k[..., None] * u[..., None, :]
        return _read(state, q), state

    def _per_head(self) -> LinearAttention:
        """The same with queries and keys of each head."""
        many = self.v.shape[1] // self.k.shape[1]
        return (
            self
            if many == 1
            else self._replace(q=self.q.repeat_interleave(many, 1), k=self.k.repeat_interleave(many, 1))
        )

    def _rows(self, rows: Tensor) -> LinearAttention:
        return LinearAttention(*(None if part is None else part[rows] for part in self[:5]))  # type: ignore[arg-type]

    def _by_chunks(self, state: Tensor, ragged: RaggedSequences) -> tuple[Tensor, Tensor]:
        chunks = ragged.chunks(CHUNK if self.decay.shape[-1] == 1 else CHANNEL_CHUNK)
        parts = (None if part is None else chunks.taken(part).transpose(1, 2) for part in self._per_head()[:5])
        taken = LinearAttention(*parts)  # type: ignore[arg-type]
        out, state = _chunked(taken, state[chunks.order], chunks)
        return chunks.laid(out.transpose(1, 2)), state[chunks.back]


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def _read(state: Tensor, by: Tensor) -> Tensor:
    return (by[..., None, :] @ state).squeeze(-2)


def _chunked(inputs: LinearAttention, state: Tensor, chunks: ScanChunks) -> tuple[Tensor, Tensor]:
    """Inputs as [N, heads, size, ...]; state in the order of the chunks, written into.

    Within a chunk the u solve a triangular system, of which all but the state before the chunk is known beforehand: u =
    own - past S (the WY form).
    """
    q, k, v, decay, beta = inputs[:5]
    total = decay.double().cumsum(2)  # the difference of two sums is exact in float32, however much has decayed before
    decays = _decays(total)
    seen = _pairs(q, k, decays)
    since, until = total.float().exp(), (total[:, :, -1:] - total).float().exp()
    reads, writes, kept = q * since, (k * until).mT, since[:, :, -1, :, None]
    own, past = v, None
    if beta is not None:
        system = _pairs(k, k, decays).tril(-1) * beta
        known = torch.cat([v, k * since], -1) * beta
        own, past = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True).split_with_sizes(
            (v.shape[-1], k.shape[-1]), -1
        )
    out = torch.empty_like(v)
    for start, stop in chunks.steps:
        before, at = state[: stop - start], slice(start, stop)
        u = own[at] if past is None else own[at] - past[at] @ before
        out[at] = reads[at] @ before + seen[at] @ u
        before.copy_(before * kept[at] + writes[at] @ u)
    return out, state


def _decays(total: Tensor) -> Tensor:
    """[N, heads, size, size, 1 or key]: e^decay from one token to each later one, 0 to earlier ones.

    total: since the chunk's start, float64.
    Only differences are raised: e^total by itself would be beyond float32.
    """
    later = torch.ones(total.shape[2], total.shape[2], dtype=torch.bool, device=total.device).triu(1)
    return (total[:, :, :, None] - total[:, :, None]).float().masked_fill_(later[..., None], -torch.inf).exp_()


def _pairs(a: Tensor, b: Tensor, decays: Tensor) -> Tensor:
    """[N, heads, size, size]: a of each token with b of each token up to it, decayed since then."""
    if decays.shape[-1] == 1:
        return (a @ b.mT) * decays[..., 0]
    return (decays * b[:, :, None] @ a[..., None]).squeeze(-1)
