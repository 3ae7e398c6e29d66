"""Texts that a grammar allows, found by walking it at random, over a vocabulary of single bytes."""

from __future__ import annotations

import json
import random
from concurrent.futures import Future
from typing import Any

import numpy as np

from sgl.grammars import Grammar, Vocabulary, compile_json_schema, compile_regex, compile_structural
from sgl.lang.backend import Backend, Generated, GenRequest, Stream
from sgl.lang.chat import get_chat_template
from sgl.lang.sampling.options import SamplingOptions

BYTES = Vocabulary.from_bytes([bytes([byte]) for byte in range(256)] + [b""], [256])


def compile_grammar_argument(options: SamplingOptions) -> Grammar | None:
    if options.json_schema is not None:
        return compile_json_schema(options.json_schema, BYTES)
    if options.structural_tag is not None:
        return compile_structural(options.structural_tag, BYTES)
    return compile_regex(options.pattern, BYTES) if options.pattern is not None else None


def walk(grammar: Grammar, rng: random.Random, most: int) -> str:
    """Up to `most` random bytes, mostly ASCII, then the shortest end."""
    matcher, text = grammar.matcher(), bytearray()
    while len(text) < most and not matcher.finished:
        if matcher.can_end and rng.random() < 0.1:
            return text.decode()
        allowed = np.nonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[:256])[0]
        plain = allowed[allowed < 128]
        byte = int(rng.choice(plain if len(plain) and rng.random() < 0.8 else allowed))
        assert matcher.accept(byte)
        text.append(byte)
    return (bytes(text) + matcher.shortest_end()).decode()


def accepts(grammar: Grammar, text: str) -> bool:
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


class WalkBackend(Backend):
    """Writes what the grammars allow, at random; `script` gives the texts of gens without one, in order."""

    def __init__(self, seed: int = 0, template: str = "chatml", name: str = "walk", script: Any = ()) -> None:
        self.rng = random.Random(seed)
        self.chat_template = get_chat_template(template)
        self.name = name
        self.script = list(script)
        self.prompts: list[str] = []

    def open(self) -> WalkStream:
        return WalkStream(self)

    def get_model_name(self) -> str:
        return self.name

    def prepare(self, options: SamplingOptions) -> None:
        compile_grammar_argument(options)


class WalkStream(Stream):
    def __init__(self, backend: WalkBackend, text: str = "") -> None:
        self.backend, self.text = backend, text

    def append(self, text: str) -> None:
        self.text += text

    def generate(self, request: GenRequest, on_chunk: Any = None) -> Future[Generated]:
        self.backend.prompts.append(self.text)
        generated = self._write(request)
        self.text += generated.text
        done: Future[Generated] = Future()
        done.set_result(generated)
        return done

    def _write(self, request: GenRequest) -> Generated:
        grammar = compile_grammar_argument(request.options)
        if self.backend.script:
            return self._scripted(self.backend.script.pop(0), grammar, request)
        text = walk(grammar, self.backend.rng, 100) if grammar else "words"
        return Generated(text, {"finish_reason": {"type": "stop", "matched": None}})

    def _scripted(self, text: str, grammar: Grammar | None, request: GenRequest) -> Generated:
        found = [(text.index(stop), stop) for stop in request.stops if stop in text]
        at, matched = min(found, default=(len(text), None))
        assert grammar is None or accepts(grammar, text[:at]), f"{text[:at]!r} is not allowed here"
        return Generated(text[:at], {"finish_reason": {"type": "stop", "matched": matched}})

    def fork(self, size: int) -> list[Stream]:
        return [WalkStream(self.backend, self.text) for _ in range(size)]

    def close(self) -> None:
        pass


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
