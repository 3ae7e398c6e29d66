"""What a workload is: its items, its program, and the same work as single calls to a model without a language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Item = dict[str, Any]
Answer = dict[str, Any]  # what a program makes of an item: texts, or lists of texts, by name


class Calls(Protocol):
    """A model as its peers offer it. All calls are greedy; prompts and results are in the same order."""

    def write(self, prompts: list[str], tokens: int) -> list[str]:
        """What follows each prompt: exactly so many tokens, where the peer can be limited so."""

    def choose(self, prompts: list[str], choices: list[str]) -> list[str]:
        """The likeliest choice after each prompt."""

    def fill(self, prompts: list[str], schema: dict[str, Any], tokens: int) -> list[str]:
        """JSON of the schema after each prompt, of at most so many tokens."""


@dataclass(frozen=True)
class Workload:
    """One kind of program.

    items      the first n items; they are the same in every run
    programs   how many items a measurement runs; `few` in the short form
    program    the sgl program; its parameters are the keys of an item
    by_calls   the same for a list of items, step by step: each step is one call for all of them
    decisions  variables that all who compute with the same weights should agree on: choices and JSON
    texts      variables of free text; small differences of rounding change them sooner or later
    forks, chains, grammars   whether there is anything to switch off: forks, nodes after a gen or select, constraints
    """

    name: str
    about: str
    items: Callable[[int], list[Item]]
    programs: int
    few: int
    program: Any
    by_calls: Callable[[Calls, list[Item]], list[Answer]]
    decisions: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    forks: bool = False
    chains: bool = True
    grammars: bool = False

    def answer(self, state: Any) -> Answer:
        """The same of a finished sgl program."""
        return {name: state[name] for name in (*self.decisions, *self.texts)}


def turn(role: str, text: str) -> str:
    """A turn as the bundled model's chat template writes it."""
    return f"<|{role}|>{text}<|end|>"


ASK = "<|assistant|>"
