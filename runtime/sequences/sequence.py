"""The unit between language and runtime: an append-only row of tokens with a queue of operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from concurrent.futures import Future
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..cache import Ints
from ..common.argument_checks import check_whole, shown
from ..errors import ConfigError
from ..sampling.sampling_params import SamplingParams
from .engine_protocols import HandleState, SequenceCore
from .generation import Chunk, Generation, TokenLogprobs
from .ops.embed_op import Embed, Floats
from .ops.generate_op import Generate
from .ops.score_op import ChoiceScores, Score
from .ops.sequence_ops import Close, Extend, Fork, Logprobs, Prefill, Read
from .sequence_state import SequenceStatus

MOST_CHILDREN = 1 << 16  # of one fork
MOST_TOKENS = 1 << 28  # at once: more than a context has


class Sequence:
    """A handle on one token sequence in the engine.

    Methods return at once unless they say "blocks"; results are futures.

    Operations run in the order in which they were queued. When one fails, those queued after it fail with the same
    error; the sequence then accepts new ones. Dropping the last reference closes the sequence after its queued
    operations.
    """

    def __init__(self, core: SequenceCore, state: HandleState) -> None:
        self._core = core
        self._state = state
        self._finalizer = weakref.finalize(self, core.submit, state, Close())
        self._finalizer.atexit = False

    @property
    def id(self) -> int:
        return self._state.id

    def extend(self, tokens: ArrayLike, drop: int = 0) -> None:
        """Append token ids, int [n], after cutting the last `drop` tokens.

        Nothing is computed yet. Ids outside the vocabulary make the operations queued after them, or the next one,
        fail.
        Raises ConfigError if `tokens` is not a sequence of token ids.
        """
        self._core.submit(self._state, Extend(check_token_ids("extend()", tokens), check_whole("drop", drop, 0)))

    def generate(
        self, params: SamplingParams | None = None, grammar: Any = None, on_chunk: Callable[[Chunk], None] | None = None
    ) -> Future[Generation]:
        """Sample after the last token until a stop, constrained by `grammar` if given.

        `on_chunk` is called on the scheduler thread for every piece of text; it must not block.
        The future raises ConfigError, ContextLengthError, RequestAborted, EngineClosed ...
        """
        return self._core.submit(
            self._state, Generate(SamplingParams() if params is None else params, grammar, on_chunk)
        )

    def score(self, choices: Items[ArrayLike]) -> Future[ChoiceScores]:
        """Compute the log-probabilities of each choice's tokens after the current end; shared beginnings count once.

        The sequence does not change. Result: for each choice a list of (logprob, token id).
        """
        return self._core.submit(self._state, Score(check_token_id_lists("score()", choices)))

    def logprobs(self, start: int, top: int = 0) -> Future[tuple[TokenLogprobs, list[TokenLogprobs]]]:
        """Compute the log-probabilities of the sequence's tokens [start:], and of the `top` best at each place."""
        return self._core.submit(self._state, Logprobs(check_whole("start", start), check_whole("top", top, 0)))

    def fork(self, n: int, *, adapter: str | EllipsisType | Items[str | None] | None = ...) -> list[Sequence]:
        """Return `n` sequences that continue from here on the same pages. They start when the parent gets here.

        adapter: the name of another one, None for the base, or a list with one for each child. Children whose adapter
            is not the parent's share the text alone, and compute it again (`Generation.reread_tokens`,
            `Stats.reread_tokens`). Raises ConfigError for a name that is not loaded.
        """
        terms, count = self._state.terms, check_whole("n", n, 0, MOST_CHILDREN)
        each = (
            [terms] * count
            if adapter is ...
            else [terms._replace(adapter=digest) for digest in self._digests(adapter, count)]
        )
        states: list[Any] = [self._core.new_state(one, SequenceStatus.CHILD_PENDING) for one in each]
        children = [Sequence(self._core, state) for state in states]
        self._core.submit(self._state, Fork(states))
        return children

    def _digests(self, adapter: str | Items[str | None] | None, count: int) -> list[str]:
        names = [adapter] * count if adapter is None or isinstance(adapter, str) else list(adapter)
        if len(names) != count:
            raise ConfigError(
                f"adapter has {len(names)} names for n={count} children; give one for each, or one for all"
            )
        found = {name: "" if name is None else self._core.adapter_digest(name) for name in dict.fromkeys(names)}
        return [found[name] for name in names]

    def prefill(self) -> Future[int]:
        """Compute all tokens now and add them to the prefix cache.

        Result: the number of tokens that were computed already.
        """
        return self._core.submit(self._state, Prefill())

    def embed(self) -> Future[Floats]:
        """Compute the mean over all tokens of the model's last hidden states (after the final norm), float32 [hidden].

        All tokens are computed, cached ones too; the sequence does not change.
        """
        return self._core.submit(self._state, Embed())

    def tokens(self) -> Ints:
        """Return the token ids after all queued operations, int32 [n]. Blocks."""
        return self._core.submit(self._state, Read()).result()

    def abort(self) -> None:
        """Fail the running and queued operations with RequestAborted. The pages stay; you can queue new operations."""
        self._core.abort(self._state)

    def close(self) -> None:
        """Release the pages after the queued operations. Safe to call twice."""
        self._finalizer()


def check_token_ids(name: str, values: Any) -> NDArray[np.int32]:
    """Token ids as int32 [n].

    Whether there are such tokens is for the engine to say. Raises ConfigError for what is no row of them.
    """
    try:
        if hasattr(values, "__len__") and len(values) > MOST_TOKENS:
            raise ConfigError(f"{name} got {len(values)} token ids; give at most {MOST_TOKENS}")
        row = np.asarray(values)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} must be a row of token ids, got {shown(values)}: {error}") from error
    if row.ndim != 1 or (len(row) and row.dtype.kind not in "iu"):
        raise ConfigError(f"{name} must be a row of token ids, which are integers, got {shown(values)}")
    if len(row) and not -(2**31) <= int(row.min()) <= int(row.max()) < 2**31:
        raise ConfigError(f"{name}: token ids must be in 0..{2**31 - 1}, got {int(row.min())}..{int(row.max())}")
    return row.astype(np.int32, copy=False)


def check_token_id_lists(name: str, values: Any) -> list[NDArray[np.int32]]:
    """Several of them, each int32 [n]."""
    if isinstance(values, str | bytes) or not isinstance(values, Collection) or not getattr(values, "ndim", 1):
        raise ConfigError(f"{name} must be given a list of rows of token ids, got {shown(values)}")
    return [check_token_ids(f"a row of {name}", row) for row in values]
