"""The tokenizer of a checkpoint, wherever it keeps it: separate files, or the keys of a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ..loading.gguf_files.gguf_file import read_parts
from ..loading.gguf_files.gguf_model import is_gguf
from ..loading.model_files.locate_model import resolve_model
from ..text.tokenizer import Tokenizer
from ..text.tokenizer_files.gguf_tokenizer import gguf_tokenizer, plain_summary
from .engine_config import EngineConfig


def load_tokenizer(path: Path, options: EngineConfig) -> Tokenizer:
    """Raises ConfigError for one that is not there or cannot be read."""
    path = _place(path, options)
    if is_gguf(path):
        return gguf_tokenizer(read_parts(path)[0].metadata, str(path), options.chat_template)
    return Tokenizer.load(path, options.chat_template)


def tokenizer_summary(path: Path, options: EngineConfig) -> tuple[int, bool]:
    """How many tokens `load_tokenizer` would give, and whether with a chat template. Raises as it does."""
    place = _place(path, options)
    if is_gguf(place) and options.chat_template is None:
        found = plain_summary(read_parts(place)[0].metadata, str(place))
        if found is not None:
            return found
    tokenizer = load_tokenizer(path, options)
    return tokenizer.vocab_size, tokenizer.chat_template is not None


def _place(path: Path, options: EngineConfig) -> Path:
    return path if options.tokenizer is None else resolve_model(options.tokenizer, weights=False)
