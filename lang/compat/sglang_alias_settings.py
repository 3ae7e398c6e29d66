"""What holds for programs that run under the alias: where their endpoints lead and which model they get."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

MODEL_VARIABLE = "SGL_MODEL"


@dataclass
class AliasSettings:
    """One for the process.

    local: endpoints at whose URL nothing answers, and servers that are launched, are the embedded engine.
    url: every endpoint is the one at this URL, whatever the program names.
    model: what is loaded whatever the program names (else the variable SGL_MODEL).
    """

    local: bool = False
    url: str | None = None
    model: str | None = None
    warned: set[str] = field(default_factory=set)

    @property
    def servers_are_replaced(self) -> bool:
        """Whether what a program would launch is there already."""
        return self.local or self.url is not None

    def is_new(self, text: str) -> bool:
        """Whether a text was not said yet; from now on it was."""
        new = text not in self.warned
        self.warned.add(text)
        return new

    def forced_model(self) -> str | None:
        return self.model or os.environ.get(MODEL_VARIABLE) or None


settings = AliasSettings()


def configure(local: bool, url: str | None, model: str | None) -> None:
    settings.local, settings.url, settings.model = local, url, model
    settings.warned.clear()


def print_once(text: str) -> None:
    """A line on stderr, the first time only: stdout belongs to the program."""
    if settings.is_new(text):
        print(f"sgl: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ModelChoice:
    """The model that is loaded (None: the bundled one), and whether the program asked for another."""

    path: str | None
    replaced: bool


def choose_model(requested: str | None) -> ModelChoice:
    """Which model a program gets that asks for `requested`; what replaces it is said once on stderr."""
    forced = settings.forced_model()
    if forced is not None:
        if requested is not None and requested != forced:
            print_once(f"model {forced!r} stands in for {requested!r}")
        return ModelChoice(forced, requested != forced)
    if not settings.local or requested is None or Path(requested).expanduser().is_dir():
        return ModelChoice(requested, False)
    print_once(f"the bundled model stands in for {requested!r}; choose another with --model PATH or {MODEL_VARIABLE}")
    return ModelChoice(None, True)
