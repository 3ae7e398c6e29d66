"""A document of a batch: its pieces, what they say, and what is merged of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sgl.documents import Document, Piece
from sgl.lang.errors import error_message_of
from sgl.lang.interpreter.token_usage import Usage
from sgl.lang.typed.typed_json import unfenced

from ..extract_program import Extraction
from .document_cost import DocumentCost
from .document_extraction import PieceError
from .found_values import FoundValue, found_values
from .merge_rules import Merged, Rule, merge_field


@dataclass
class DocumentPart:
    """`answers`: of each piece its Extraction or error. `decided`: the same of the model's choice between values."""

    document: Document
    pieces: list[Piece]
    cost: DocumentCost
    rules: Mapping[str, Rule | None]
    answers: list[Any] = field(default_factory=list)
    found: dict[str, list[FoundValue]] = field(default_factory=dict)
    decided: Any = None

    def gather(self, answers: list[Any]) -> None:
        """Take the answers, and sort what they say by fields."""
        self.answers, self.found = answers, {name: [] for name in self.rules}
        for piece, answer in zip(self.pieces, answers, strict=True):
            if isinstance(answer, Extraction):
                for one in found_values(answer, fields_of(answer), piece):
                    self.found[one.field].append(one)

    def undecided(self) -> list[str]:
        """The fields of which pieces say different things, where the model is to choose."""
        names = [name for name, rule in self.rules.items() if rule == "model"]
        return [name for name in names if any(one.value != self.found[name][0].value for one in self.found[name])]

    def listed(self) -> str:
        """What the pieces say of these fields, a line for each."""
        found = [one for name in self.undecided() for one in self.found[name]]
        where = [str(one.place).rpartition(", ")[2] for one in found]
        texts = [json.dumps(one.value, ensure_ascii=False) for one in found]
        return "\n".join(f"{one.field}: {text} ({at})" for one, text, at in zip(found, texts, where, strict=True))

    def merged(self, skip: bool) -> Merged:
        """The fields and their places. Raises PieceError for a piece that failed, and the error of the choice.

        skip: failed pieces are left out, unless all have failed.
        """
        failed = [pair for pair in zip(self.pieces, self.answers, strict=True) if not isinstance(pair[1], Extraction)]
        if failed and not (skip and len(failed) < len(self.pieces)):
            piece, error = failed[0]
            more = f" ({len(failed) - 1} of {len(self.pieces)} pieces more failed)" if len(failed) > 1 else ""
            raise PieceError(f"{piece.place}: {error_message_of(error)}{more}", piece) from error
        if isinstance(self.decided, Exception):
            raise self.decided
        merged, undecided = Merged(), self.undecided()
        chosen = fields_of(self.decided) if undecided else {}
        for name, rule in self.rules.items():
            found = self.found[name]
            if name not in undecided:
                merge_field(name, "first" if rule == "model" else rule, found, merged)
            elif chosen.get(name) is not None:
                merged.add(name, chosen[name], [one for one in found if one.value == chosen[name]] or found)
        return merged

    def usage(self) -> Usage:
        """What the pieces and the choice between their values have used."""
        return Usage.total(answer.usage for answer in (*self.answers, self.decided) if isinstance(answer, Extraction))


def fields_of(answer: Extraction[Any]) -> dict[str, Any]:
    """The fields of an answer, in JSON."""
    return json.loads(unfenced(answer.attempts[-1].text))
