"""What `/generate` answers: the JSON of one text, whole or so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from sgl.runtime.sequences.generation import Chunk, Generation, TokenLogprobs

from ...running_requests import ABORTED
from .generate_request_reader import PromptRequest

Json = dict[str, Any]
Entry = list[Any]  # [log-probability or None, token id, text or None]

SHARE = 256  # an event tells all there is so far: the next one follows when there is a 256th more
IMPOSSIBLE = -9999.0  # JSON has no word for minus infinity


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of a prompt's tokens after `first_token`, and the best tokens at each of these places."""

    first_token: int
    found: TokenLogprobs
    top: list[TokenLogprobs]


class GenerateResponseWriter:
    """Writes the answers to one prompt, of which several texts may follow; `index` counts them, for their ids."""

    def __init__(self, request: PromptRequest, token_bytes: Sequence[bytes], index: int = 0) -> None:
        self._id = request.rid if request.n == 1 else f"{request.rid}_{index}"
        self._with_text = request.token_texts
        self._with_tops = request.params.top_logprobs > 0
        self._token_bytes = token_bytes
        self._text = ""
        self._ids: list[int] = []
        self._rows: list[Entry] | None = None
        self._counts = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        self.ended = False
        self._due = 0  # tokens at which there is an event

    def whole(self, generation: Generation, inputs: PromptLogprobs | None = None) -> Json:
        """The answer to a call that is no stream, and the last event of one that is."""
        self.ended = True
        meta: Json = {
            "id": self._id,
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
        }
        if inputs is not None:
            meta |= self._input_rows(inputs)
        if generation.logprobs is not None:
            meta |= _outputs(self._entries(generation.logprobs))
        if generation.top_logprobs is not None:
            meta["output_top_logprobs"] = [self._entries(row) for row in generation.top_logprobs]
        return {"text": generation.text, "output_ids": generation.token_ids, "meta_info": meta}

    def take(self, chunk: Chunk) -> Json | None:
        """The event of a chunk that is not the last: the text and the tokens so far. Long texts have one now and
        then."""
        self._text += chunk.text
        self._ids += chunk.token_ids
        self._counts = {
            "prompt_tokens": chunk.prompt_tokens,
            "completion_tokens": len(self._ids),
            "cached_tokens": chunk.cached_tokens,
        }
        if chunk.logprobs is not None:
            self._rows = self._rows or []
            self._rows += self._entries(chunk.logprobs)
        if len(self._ids) < self._due:
            return None
        self._due = len(self._ids) + len(self._ids) // SHARE + 1
        return self._so_far(None)

    def aborted(self) -> Json:
        """The last event of a text that was aborted: what there was until then."""
        return self._so_far({"type": "abort", "message": ABORTED})

    def _so_far(self, finish_reason: Json | None) -> Json:
        meta: Json = {"id": self._id, "finish_reason": finish_reason, **self._counts}
        if self._rows is not None:
            meta |= _outputs(list(self._rows))
        return {"text": self._text, "output_ids": list(self._ids), "meta_info": meta}

    def _input_rows(self, inputs: PromptLogprobs) -> Json:
        """The first of the tokens has no log-probability and no best tokens."""
        token = inputs.first_token
        rows: Json = {"input_token_logprobs": [[None, token, self._token_text(token)], *self._entries(inputs.found)]}
        if self._with_tops:
            rows["input_top_logprobs"] = [None, *(self._entries(row) for row in inputs.top)]
        return rows

    def _entries(self, pairs: TokenLogprobs) -> list[Entry]:
        return [[_shown(value), token, self._token_text(token)] for value, token in pairs]

    def _token_text(self, token: int) -> str | None:
        """The text of one token if texts are wanted; "" for rows of the model that no token uses."""
        if not self._with_text:
            return None
        return self._token_bytes[token].decode(errors="replace") if token < len(self._token_bytes) else ""


def _outputs(rows: list[Entry]) -> Json:
    return {"output_token_logprobs": rows, "output_token_logprobs_length": len(rows)}


def _shown(value: float) -> float | None:
    """None for a token that was not sampled but came of a cut one."""
    return None if isnan(value) else max(value, IMPOSSIBLE)
