"""How likely the model holds each choice of a `select`, or of a gen of a
Literal, an Enum or bool, by the choice's text.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..errors import BadValueError
from ..interpreter.choice_rescoring import rescore_choices
from ..interpreter.state_transcript import PendingText
from ..nodes.ir import SglGen, SglSelect
from ..sampling.choices import ChoicesDecision
from ..typed.choice_labels import choice_labels

if TYPE_CHECKING:
    from ..interpreter.state_variables import Binding
    from ..interpreter.stream_executor import StreamExecutor


def probabilities(executor: StreamExecutor, name: str, binding: Binding | None) -> dict[str, float]:
    """P(choice | it is one of them) of what made `name`, most likely first. Waits.

    A select knows them. The choices of a typed gen are scored now, in its place. Equal choices are one, with their sum.
    Raises
    BadValueError if neither made the variable or its backend reports no probabilities, ProgramError if it failed.
    """
    made = _Made(executor, name, binding)
    return made.probabilities(None if made.later is None else made.later.result())


async def probabilities_async(executor: StreamExecutor, name: str, binding: Binding | None) -> dict[str, float]:
    """`probabilities` of what is done, without blocking the event loop."""
    made = _Made(executor, name, binding)
    if made.later is None:
        return made.probabilities(None)
    scored: ChoicesDecision = await asyncio.wrap_future(made.later)
    return made.probabilities(scored)


class _Made:
    """What made a variable: its choices, and their scores or where these will come from."""

    def __init__(self, executor: StreamExecutor, name: str, binding: Binding | None) -> None:
        self.name = name
        node = getattr(binding, "node", None)
        self.later: Future[ChoicesDecision] | None = None
        if isinstance(node, SglSelect):
            self.choices = node.choices
        elif isinstance(binding, PendingText) and (choices := _choices_of(node)):
            self.choices = choices
        else:
            raise BadValueError(
                f"probs({name!r}): {_made(binding)}; read it in the state whose select, or gen of a Literal, Enum or "
                "bool, made it"
            )
        assert binding is not None
        binding.get()
        self._meta = binding.meta_info
        if isinstance(binding, PendingText) and not isinstance(node, SglSelect):
            self.later = rescore_choices(executor, binding, self.choices)

    def probabilities(self, scored: ChoicesDecision | None) -> dict[str, float]:
        meta = self._meta if scored is None else scored.meta_info
        listed = (meta or {}).get("choice_probs")
        if listed is None:
            raise BadValueError(f"probs({self.name!r}): the backend returned no probabilities")
        found = dict.fromkeys(map(str, self.choices), 0.0)
        for choice, value in zip(self.choices, listed, strict=True):
            found[choice] += value
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def _choices_of(node: object) -> list[str] | None:
    labels = choice_labels(getattr(node.reading, "kind", None)) if isinstance(node, SglGen) else None
    return labels.texts if labels else None


def _made(binding: Binding | None) -> str:
    if binding is None:
        return "this value was assigned, or gathered from forks by join"
    return "no select made this variable"
