"""meta_info: what the language reports of a generation or a selection."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from ...backend import Generated
from ...concurrency.unique_ids import fresh_id
from ...sampling.options import SamplingOptions

if TYPE_CHECKING:
    from sgl.runtime.sequences.generation import Chunk, Generation

Entry = list[Any]  # [log-probability or None, token id, text or None]


class MetaInfoWriter:
    """Writes the meta_info of one gen, chunk by chunk and whole."""

    def __init__(self, token_bytes: Sequence[bytes], options: SamplingOptions) -> None:
        self.id = fresh_id()
        self._token_bytes = token_bytes
        self._with_text = options.return_text_in_logprobs is not False
        self._top = bool(options.return_logprob and options.top_logprobs_num)
        self._completed = 0
        self._reported = 0

    def entries(self, logprobs: Sequence[tuple[float, int]]) -> list[Entry]:
        return [self.entry(None if isnan(value) else value, token) for value, token in logprobs]

    def entry(self, value: float | None, token: int) -> Entry:
        return [value, token, token_text(self._token_bytes, token) if self._with_text else None]

    def chunk(self, chunk: Chunk) -> Generated:
        """A chunk of a running generation: new log-probabilities, cumulative counts."""
        self._completed += len(chunk.token_ids)
        meta: dict[str, Any] = {
            "id": self.id,
            "finish_reason": None,
            "prompt_tokens": chunk.prompt_tokens,
            "completion_tokens": self._completed,
            "cached_tokens": chunk.cached_tokens,
        }
        if chunk.generation is not None:
            meta = self._counts(chunk.generation)
        if chunk.logprobs is not None:
            self._reported += len(chunk.logprobs)
            meta["output_token_logprobs"] = self.entries(chunk.logprobs)
            meta["output_token_logprobs_length"] = self._reported
        return Generated(chunk.text, meta, chunk.token_ids)

    def whole(self, generation: Generation, inputs: tuple[list[Entry], list[list[Entry]]] | None = None) -> Generated:
        """The finished generation. `inputs`: entries of the prompt's tokens, and of the best ones there."""
        meta = self._counts(generation)
        if generation.logprobs is not None:
            meta["output_token_logprobs"] = self.entries(generation.logprobs)
            meta["output_token_logprobs_length"] = len(generation.logprobs)
        if self._top and generation.top_logprobs is not None:
            meta["output_top_logprobs"] = [self.entries(row) for row in generation.top_logprobs]
        if inputs is not None:
            meta["input_token_logprobs"] = inputs[0]
            if self._top:
                meta["input_top_logprobs"] = inputs[1]
        return Generated(generation.text, meta, generation.token_ids)

    def _counts(self, generation: Generation) -> dict[str, Any]:
        return {
            "id": self.id,
            "finish_reason": generation.finish_reason,
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": generation.completion_tokens,
            "cached_tokens": generation.cached_tokens,
            "forced_tokens": generation.forced_tokens,
            "drafted_tokens": generation.drafted_tokens,
            "accepted_tokens": generation.accepted_tokens,
            "e2e_latency": generation.e2e_latency,
            "queue_seconds": generation.queue_seconds,
            "truncated": generation.truncated,
            **({"closed": True} if generation.closed else {}),
            **({"reread_tokens": generation.reread_tokens} if generation.reread_tokens else {}),
        }


def token_text(token_bytes: Sequence[bytes], token: int) -> str:
    """The text of one token; "" for rows of the model that no token of the tokenizer uses."""
    return token_bytes[token].decode(errors="replace") if token < len(token_bytes) else ""
