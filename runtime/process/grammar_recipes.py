"""Grammars out of their recipes, compiled in parallel to the scheduler thread, each once."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from sgl.grammars import Grammar, Vocabulary
from sgl.grammars.compile import GrammarRecipe

from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import SequenceStatus

if TYPE_CHECKING:
    from ..loop.sequence_lifecycle import SequenceLifecycle
    from ..sequences.sequence_state import SequenceEngine, SequenceState

MOST_KEPT = 256
THREADS = 2  # a slow one does not hold up those after it


class GrammarRecipes:
    """Those used last, with their grammars or the futures of them. Of one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sgl-compile")
        self._made: OrderedDict[GrammarRecipe, Future[Grammar]] = OrderedDict()

    def grammar(self, recipe: GrammarRecipe | BaseException) -> Future[Grammar]:
        """What becomes of a recipe; an error in its place is handed on."""
        if isinstance(recipe, BaseException):
            failed: Future[Grammar] = Future()
            failed.set_exception(recipe)
            return failed
        found = self._made.get(recipe)
        if found is None or (found.done() and found.exception() is not None):
            found = self._made[recipe] = self._pool.submit(recipe.prepare, self._vocabulary)
        self._made.move_to_end(recipe)
        if len(self._made) > MOST_KEPT:
            self._made.popitem(last=False)
        return found


class LateGenerate(Generate):
    """Waits at the head of its sequence's queue for the grammar, and fails with its error."""

    __slots__ = ("ready",)

    def __init__(self, params: Any, ready: Future[Grammar], on_chunk: Any) -> None:
        super().__init__(params, None, on_chunk)
        self.ready = ready

    @property
    def blocked(self) -> bool:
        return not self.ready.done()

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        self.grammar = self.ready.result()
        return super().begin(seq, life)

    def resume_when_ready(self, core: Any, seq: SequenceState) -> None:
        """Have the sequence go on once the grammar is there, if the generation is at its head and not begun by then."""
        self.ready.add_done_callback(lambda _: core.soon(partial(self._go_on, core.life, seq)))

    def _go_on(self, life: SequenceLifecycle, seq: SequenceState) -> None:
        if seq.ops and seq.ops[0] is self and self.decoding is None and seq.status is not SequenceStatus.CHILD_PENDING:
            life.advance(seq)
