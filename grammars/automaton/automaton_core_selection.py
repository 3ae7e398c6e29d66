"""Which core an automaton gets, and what it means that one stops."""

from __future__ import annotations

import logging
import os
from functools import cache

from sgl.grammars.automaton import native_automaton_core
from sgl.grammars.automaton.distinct_items_core import DistinctItemsCore
from sgl.grammars.automaton.native_automaton_core import NativeCore
from sgl.grammars.automaton.python_automaton_core import PythonCore
from sgl.grammars.automaton.state_closure import CROWDED, FULL
from sgl.grammars.errors import AutomatonFullError, GrammarLimitError
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.tokens.vocabulary import Vocabulary

Core = PythonCore | NativeCore | DistinctItemsCore


@cache
def core_name() -> str:
    """Return the core that this process uses: "C", or "python" if that is not built or SGL_PURE_PYTHON=1."""
    if os.environ.get("SGL_PURE_PYTHON", "0") not in ("", "0"):
        return "python"
    if native_automaton_core.library() is not None:
        return "C"
    logging.getLogger("sgl.grammars").warning(
        "the C core of sgl.grammars is not built: masks come from the slower Python implementation; "
        "install a C compiler and reinstall sgl to get it"
    )
    return "python"


def make_core(
    network: TransitionNetwork, vocabulary: Vocabulary, limit: int, kind: str | None = None
) -> PythonCore | NativeCore:
    """The core of a kind, by default the one that this process uses, for so many states at most."""
    make = NativeCore if (kind or core_name()) == "C" else PythonCore
    return make(network, vocabulary, limit)


def prepare_vocabulary(vocabulary: Vocabulary) -> None:
    """Make what every grammar's masks need of a vocabulary, once; the C core does so without the GIL.

    The Python core makes it where it is asked for.
    """
    if vocabulary.masks and vocabulary.exact and core_name() == "C":
        native_automaton_core.vocabulary_tables(vocabulary)


def stopped(code: int, core: Core) -> Exception:
    """Why a core cannot go on."""
    if code == FULL:
        return GrammarLimitError(
            "the grammar needs too many threads at once for this text; simplify it, bound its repeats, and let no rule "
            "call itself before it reads a byte"
        )
    if code == CROWDED:
        return AutomatonFullError(
            f"the grammar needs more than {core.size()} states or {core.held()} threads for this text; simplify it or "
            "bound its repeats"
        )
    return MemoryError("out of memory for a grammar's automaton")
