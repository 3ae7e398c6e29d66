"""What detokenizers and the marks of chat templates ask of a tokenizer: `tokenizer.Tokenizer` has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np


class DecodesTokens(Protocol):
    """A tokenizer as a detokenizer sees it."""

    @property
    def exact_bytes(self) -> bool:
        """Decoding is the concatenation of the tokens' bytes."""
        ...

    def visible_bytes(self, skip_special_tokens: bool) -> Sequence[bytes]: ...
    def decode_stream(self, skip_special_tokens: bool) -> Callable[[int], str | None]: ...
    def backend_decode(self, ids: list[int], skip_special_tokens: bool) -> str: ...


class EncodesText(Protocol):
    """A tokenizer as the marks of a chat template see it."""

    @property
    def chat_sources(self) -> list[str]:
        """The Jinja sources of all chat templates."""
        ...

    @property
    def token_bytes(self) -> list[bytes]: ...
    @property
    def prefix_ids(self) -> tuple[int, ...]: ...

    def spans(self, text: str) -> list[tuple[int, int, int]]: ...
    def encode(
        self, text: str, special_prefix: bool = False, parse_special: bool = True, parse_marks: bool = True
    ) -> np.ndarray: ...
