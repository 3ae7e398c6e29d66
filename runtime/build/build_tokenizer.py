"""The tokenizer of a checkpoint, wherever it keeps it: separate files, or the keys of a GGUF file."""

from __future__ import annotations

from pathlib import Path

from ..loading import resolve_model
from ..loading.gguf_files.gguf_file import read_parts
from ..loading.gguf_files.gguf_model import is_gguf
from ..text.tokenizer import Tokenizer
from ..text.tokenizer_files.gguf_tokenizer import gguf_tokenizer
from .engine_config import EngineConfig


def load_tokenizer(path: Path, options: EngineConfig) -> Tokenizer:
    """Raises ConfigError for one that is not there or cannot be read."""
    path = path if options.tokenizer is None else resolve_model(options.tokenizer, weights=False)
    if is_gguf(path):
        return gguf_tokenizer(read_parts(path)[0].metadata, str(path), options.chat_template)
    return Tokenizer.load(path, options.chat_template)
