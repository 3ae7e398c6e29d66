"""What it takes to turn tokens into text."""

from __future__ import annotations

from typing import NamedTuple

from sgl.grammars import Vocabulary

from ..text.tokenizer import Tokenizer
from .jump_cache import JumpCache


class DetokenizerResources(NamedTuple):
    """The tokenizer, its vocabulary as grammars see it, and jumps that were found (None: no jumps)."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    jumps: JumpCache | None
