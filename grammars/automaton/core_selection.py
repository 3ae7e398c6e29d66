"""Which core an automaton gets, and what it means that one stops."""

from __future__ import annotations

import logging
import os
from functools import cache

from sgl.grammars.automaton import native
from sgl.grammars.automaton.closure import CROWDED, FULL
from sgl.grammars.automaton.native import NativeCore
from sgl.grammars.automaton.remembering import RememberingCore
from sgl.grammars.automaton.twin import PythonCore
from sgl.grammars.errors import CrowdedError, GrammarLimitError
from sgl.grammars.network.network import Network
from sgl.grammars.tokens.vocabulary import Vocabulary

Core = PythonCore | NativeCore | RememberingCore


@cache
def core_name() -> str:
    """Return the core that this process uses: "C", or "python" if that is not built or SGL_PURE_PYTHON=1."""
    if os.environ.get("SGL_PURE_PYTHON", "0") not in ("", "0"):
        return "python"
    if native.library() is not None:
        return "C"
    logging.getLogger("sgl.grammars").warning(
        "the C core of sgl.grammars is not built: masks come from the slower Python twin; "
        "install a C compiler and reinstall sgl to get it"
    )
    return "python"


def make_core(network: Network, vocabulary: Vocabulary, limit: int, kind: str | None = None) -> PythonCore | NativeCore:
    """The core of a kind, by default the one that this process uses, for so many states at most."""
    make = NativeCore if (kind or core_name()) == "C" else PythonCore
    return make(network, vocabulary, limit)


def stopped(code: int, core: Core) -> Exception:
    """Why a core cannot go on."""
    if code == FULL:
        return GrammarLimitError(
            "the grammar needs too many threads at once for this text; simplify it, bound its repeats, and let no rule "
            "call itself before it reads a byte"
        )
    if code == CROWDED:
        return CrowdedError(
            f"the grammar needs more than {core.size()} states or {core.held()} threads for this text; simplify it or "
            "bound its repeats"
        )
    return MemoryError("out of memory for a grammar's automaton")
