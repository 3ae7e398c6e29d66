"""One request as the sampler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import pack

import numpy as np

from sgl.runtime.sampling.sampling_noise import seed_hash_words
from sgl.runtime.sampling.sampling_params import SamplingParams

# flags of a packed row; the kernels know the first two
RANDOM, TRUNCATED, SCORED, PENALIZED, BIASED, WAITING, SIGMA_CUT, SCORED_MASKED = (1 << i for i in range(8))
_ALL = 2**31 - 1  # top_k without a limit


@dataclass(slots=True)
class SamplingRow:
    """One request as the sampler sees it.

    Attributes:
        seed: of the noise; with the token's position it decides the choice.
        prompt_ids: read once, for the repetition penalty.
        output_ids: the live list; the engine appends to it (or rewrites its end).
        end_ids: tokens banned before `params.min_tokens`: `params.end_ids(tokenizer.eos_ids)`.
        packed: 8 words: seed (uint64), 1 / temperature, top_p, min_p (float32), top_k, flags (int32), 0.
        flags: what it asks for.
    """

    params: SamplingParams
    seed: int
    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    end_ids: frozenset[int] = frozenset()
    packed: bytes = field(init=False, repr=False, compare=False)
    flags: int = field(init=False, repr=False, compare=False)
    _ends: np.ndarray | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        p = self.params
        inverse = 1.0 if p.greedy else 1.0 / p.temperature
        top_p, top_k = p.top_p if p.top_p < 1 else np.inf, p.top_k if 0 < p.top_k < _ALL else _ALL
        word, self.flags = int(seed_hash_words([self.seed])[0]), self._flags()
        self.packed = pack("=Q3f3i", word, inverse, top_p, p.min_p, top_k, self.flags, 0)

    def changes_by(self, tokens: int) -> bool:
        """Whether so many tokens behind the output would change how it is sampled, beside the logits."""
        length = len(self.output_ids)
        return bool(
            self.flags & PENALIZED or (self.flags & WAITING and length < self.params.min_tokens <= length + tokens)
        )

    def bans(self) -> np.ndarray | None:
        """int32: the tokens that may not come now, unless a grammar allows no others; None: there are none."""
        if not (self.flags & WAITING and len(self.output_ids) < self.params.min_tokens):
            return None
        if self._ends is None:
            self._ends = np.array(sorted(self.end_ids), np.int32)
        return self._ends

    def _flags(self) -> int:
        p = self.params
        truncated = p.top_p < 1 or p.top_k > 0 or p.min_p > 0
        scored = p.logprobs or p.top_logprobs > 0
        asked = (
            (not p.greedy, RANDOM),
            (not p.greedy and truncated, TRUNCATED),
            (not p.greedy and p.top_n_sigma > 0, SIGMA_CUT),
            (scored, SCORED),
            (p.penalized, PENALIZED),
            (bool(p.logit_bias), BIASED),
            (p.min_tokens > 0 and bool(self.end_ids), WAITING),
            (scored and p.masked_logprobs, SCORED_MASKED),
        )
        return sum(flag for wanted, flag in asked if wanted)
