"""The task of the adapter that ships with sgl-nano: offers of vehicles and courses, which the model itself never saw.

Of every field one sentence, and some of its names, are kept out of training: they show whether the adapter learnt the
domains or the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from sgl.runtime.nano.nano_prompts import Message, extraction, json_text, schema_of
from training.probes import Probe
from training.synthetic import UNSEEN_DOMAINS, Catalogue, Concept, Documents, load_catalogue
from training.values import Pools, load_pools

REHEARSED = 0.2  # of the documents are of the domains that the model knows
SEED = 77


def conversations(data: Path, seed: int = SEED) -> Iterator[list[Message]]:
    """Without end, to learn from."""
    rng, pools, catalogue = Random(seed), load_pools(data), load_catalogue()
    own = Documents(rng, pools, _of_domains(catalogue, _taught), "domains")
    known = Documents(rng, pools, catalogue)
    while True:
        yield (known if rng.random() < REHEARSED else own).messages()


def reworded(pools: Pools, count: int, seed: int = 5) -> list[Probe]:
    """Documents whose sentences `conversations` never has, asked for by all names."""
    composer = Documents(Random(seed), pools, _of_domains(load_catalogue(), _untaught), "domains")
    made = [composer.make() for _ in range(count)]
    return [
        Probe(
            "listings-reworded",
            extraction(each.fields, each.document),
            json_text(each.answer),
            schema=schema_of(each.fields),
        )
        for each in made
    ]


def kept_out(sentences: tuple[str, ...]) -> tuple[str, ...]:
    """The last sentence, or the last of each sign."""
    last = {sentence[0] if sentence[0] in "+-" else "": sentence for sentence in sentences}
    return tuple(last.values())


def _taught(concept: Concept) -> Concept:
    hidden = kept_out(concept.sentences)
    return replace(
        concept, names=concept.seen_names, sentences=tuple(each for each in concept.sentences if each not in hidden)
    )


def _untaught(concept: Concept) -> Concept:
    return replace(concept, sentences=kept_out(concept.sentences))


def _of_domains(catalogue: Catalogue, change: Callable[[Concept], Concept]) -> Catalogue:
    domains = {
        domain: tuple(map(change, concepts)) if domain in UNSEEN_DOMAINS else concepts
        for domain, concepts in catalogue.domains.items()
    }
    return replace(catalogue, domains=domains)
