"""How likely the model holds each choice of a `select` to be, by the choice's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadValueError
from ..nodes.ir import SglSelect

if TYPE_CHECKING:
    from ..interpreter.variables import Binding


def probabilities(name: str, binding: Binding | None) -> dict[str, float]:
    """P(choice | it is one of them) of the select bound to `name`, most likely first. Waits.

    Equal choices are one, with their sum. Raises BadValueError if no select made the variable or its backend tells
    no probabilities, ProgramError if the select failed.
    """
    node = getattr(binding, "node", None)
    if binding is None or not isinstance(node, SglSelect):
        raise BadValueError(f"probs({name!r}): {_made(binding)}; read it in the state whose select made it")
    binding.get()
    listed = (binding.meta_info or {}).get("choice_probs")
    if listed is None:
        raise BadValueError(f"probs({name!r}): the backend returned no probabilities")
    found = dict.fromkeys(node.choices, 0.0)
    for choice, value in zip(node.choices, listed, strict=True):
        found[choice] += value
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _made(binding: Binding | None) -> str:
    if binding is None:
        return "this value was assigned, or gathered from forks by join"
    return "no select made this variable"
