"""Documents of layouts and values that the bundled model was not trained on, with what they say: by schemas of fields.

Each schema has fields of the two domains that training leaves out, or names that it leaves out, and documents that
state most of them. `training/synthetic.py` composes them; DATA is the folder that `training/README.md` describes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import PromptField, extraction, render, schema_of
from training.synthetic import Concept, Documents, Split, documents
from training.values import load_pools

MEMBER = "<|assistant|>"


@dataclass(frozen=True)
class Asked:
    """A schema with a document: `answer` is what the document says, without what it does not."""

    kind: int
    fields: tuple[PromptField, ...]
    text: str
    answer: dict[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema, with the descriptions that the prompt has."""
        schema = schema_of(self.fields)
        for field in self.fields:
            if field.description:
                schema["properties"][field.name]["description"] = field.description
        return schema

    @property
    def prompt(self) -> str:
        """The whole prompt in the words that the bundled model was trained on."""
        return render(extraction(self.fields, self.text)) + MEMBER

    def row(self) -> dict[str, Any]:
        """For other processes, as JSON."""
        return {
            "kind": self.kind,
            "schema": self.schema,
            "prompt": self.prompt,
            "messages": extraction(self.fields, self.text),
        }


def asked(data: Path, schemas: int, each: int, seed: int = 11) -> list[Asked]:
    """`each` documents for each of `schemas` schemas, half of them of domains and half with names that are new."""
    pools = load_pools(data)
    rows: list[Asked] = []
    for kind in range(schemas):
        split: Split = "domains" if kind % 2 else "names"
        composer = documents(Random(seed * 1000 + kind), pools, split)
        rows += _of_one_schema(composer, kind, each)
    return rows


def _of_one_schema(composer: Documents, kind: int, each: int) -> list[Asked]:
    rng = composer.rng
    domain = rng.choice(composer.domains)
    concepts = rng.sample(list(composer.catalogue.domains[domain]), min(6, len(composer.catalogue.domains[domain])))
    fields = _fields(composer, concepts)
    return [_document(composer, kind, domain, fields) for _ in range(each)]


def _fields(composer: Documents, concepts: list[Concept]) -> list[tuple[Concept, PromptField]]:
    """A field of each concept, under a name that is valid in Python."""
    found = []
    for concept in concepts:
        field, _ = composer._asked(composer.fact(concept), [], _names(composer, concepts))
        if field is not None:
            found.append((concept, replace(field, name=concept.key.replace(" ", "_"))))
    return found


def _names(composer: Documents, concepts: list[Concept]) -> Any:
    from training.synthetic import _Names

    return _Names(composer, concepts, "snake")


def _document(composer: Documents, kind: int, domain: str, fields: list[tuple[Concept, PromptField]]) -> Asked:
    stated = [pair for pair in fields if composer.rng.random() < 0.85] or fields[:1]
    facts = [composer.fact(concept) for concept, _ in stated]
    text = composer.write(domain, facts)
    answer = {
        field.name: fact.text if field.kind == "string" else fact.value
        for fact, (_, field) in zip(facts, stated, strict=True)
    }
    return Asked(
        kind, tuple(field for _, field in fields), text, {f.name: answer[f.name] for _, f in fields if f.name in answer}
    )


def as_json(rows: list[Asked]) -> list[dict[str, Any]]:
    return [{**asdict(row), **row.row()} for row in rows]
