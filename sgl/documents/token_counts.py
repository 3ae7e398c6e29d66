"""How many tokens a text has: by a tokenizer, or estimated for models whose tokenizer is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any

from sgl.lang.backends.default_backend import resolve_backend
from sgl.lang.errors import BadValueError

BYTES_PER_TOKEN = 3  # English has about 4 in a token, other European languages 3, Chinese and Japanese 2 to 4


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts tokens. `exact`: by the model's tokenizer; otherwise it is an estimate."""

    count: Callable[[str], int]
    exact: bool

    def __call__(self, text: str) -> int:
        return self.count(text)


def token_counter(backend: Any = None, tokenizer: Any = None) -> TokenCounter:
    """Counts as `tokenizer` does, else as the tokenizer of the backend's engine does, else by an estimate.

    backend: by default the default backend. tokenizer: an object with `encode(text)`, such as those of tokenizers,
    transformers and tiktoken, or a function that returns a text's tokens or their number.
    """
    if tokenizer is not None:
        return TokenCounter(partial(_counted, _encoder(tokenizer)), True)
    of_engine = getattr(resolve_backend(backend), "tokenizer", None)
    if of_engine is None:
        return TokenCounter(estimated_tokens, False)
    return TokenCounter(lambda text: len(of_engine.encode(text, parse_special=False)), True)


def estimated_tokens(text: str) -> int:
    """A token for three bytes of UTF-8, which is more than most models need for English."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _encoder(tokenizer: Any) -> Callable[[str], Any]:
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise BadValueError(f"tokenizer is {tokenizer!r}; give an object with encode(text), or a function of a text")
    return encode


def _counted(encode: Callable[[str], Any], text: str) -> int:
    found = encode(text)
    found = getattr(found, "ids", found)
    if isinstance(found, Sized):
        return len(found)
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    raise BadValueError(f"tokenizer gave {found!r} for a text; it must give the tokens, or their number")
