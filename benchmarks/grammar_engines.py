"""The constrained-decoding engines under one interface: ours, llguidance and xgrammar.

`../shared/tools/measure_grammar_peers.py --engine benchmarks/grammar_engines.py:Sgl` takes them too. `batch` gives the
call that fills a mask for each of some beginnings of a text.
A vocabulary has `tokens` (bytes), `n_special` ids before them, `eos`, `size`, and for llguidance `enc` (tiktoken) or
`tokenizer_json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np


class Sgl:
    package = "sgl"

    def __init__(self, vocabulary: Any, **options: Any) -> None:
        from sgl import grammars

        tokens = [b""] * vocabulary.n_special + list(vocabulary.tokens)
        self._grammars, self._options = grammars, options
        self.vocabulary = grammars.Vocabulary.from_bytes(tokens, [vocabulary.eos])
        self.info: dict[str, Any] = {}

    def compile(self, kind: str, source: Any) -> None:
        made, vocabulary = self._grammars, self.vocabulary
        if kind == "json":
            self.grammar = made.compile_json_schema(source, vocabulary, **self._options)
        elif kind == "any order":
            self.grammar = made.compile_json_schema(source, vocabulary, **{**self._options, "order": "any"})
        elif kind == "regex":
            self.grammar = made.compile_regex(source, vocabulary)
        else:
            self.grammar = made.compile_ebnf(source["gbnf"], vocabulary)

    def forget(self) -> None:
        """Drop compiled grammars, so that the next compile is a cold one."""
        self.vocabulary.compiled.clear()

    def start(self) -> None:
        self._matcher = self.grammar.matcher()

    def mask(self) -> None:
        self._row = self._matcher.mask()

    def allowed(self, token: int) -> bool:
        return bool(int(self._row[token >> 5]) >> (token & 31) & 1)

    def advance(self, token: int) -> bool:
        return self._matcher.accept(token)

    def eos_ok(self) -> bool:
        return self._matcher.can_end

    def batch(self, beginnings: list[list[int]]) -> Callable[[], Any]:
        from sgl.grammars.automaton.batch_token_masks import fill_masks

        matchers = [self.grammar.matcher() for _ in beginnings]
        for matcher, tokens in zip(matchers, beginnings, strict=True):
            for token in tokens:
                matcher.accept(token)
        rows = np.empty((len(matchers), len(matchers[0].mask())), np.int32)
        return lambda: fill_masks(matchers, rows)

    def memory(self) -> int:
        return int(self.grammar.memory)

    def version(self) -> str:
        return f"{version('sgl')} ({self._grammars.core_name()} core)"


class AnyOrder(Sgl):
    """Keys in any order, as instances in the wild have them."""

    def __init__(self, vocabulary: Any) -> None:
        super().__init__(vocabulary, order="any")


class LlGuidance:
    package = "llguidance"

    def __init__(self, vocabulary: Any) -> None:
        import llguidance
        from llguidance.tiktoken import lltokenizer_from_encoding

        self._llg = llguidance
        size, eos = vocabulary.size, vocabulary.eos
        if getattr(vocabulary, "enc", None) is not None:
            self._tokenizer = lltokenizer_from_encoding(vocabulary.enc, n_vocab=size, eos_token=eos)
        else:
            self._tokenizer = llguidance.LLTokenizer(vocabulary.tokenizer_json, n_vocab=size, eos_token=eos)
        self._row = np.full((size + 31) // 32, -1, np.int32)
        self.info: dict[str, Any] = {}

    def compile(self, kind: str, source: Any) -> None:
        matcher = self._llg.LLMatcher
        if kind == "json":
            grammar = matcher.grammar_from_json_schema(source)
        elif kind == "regex":
            grammar = matcher.grammar_from_regex(source)
        elif kind == "ebnf":
            grammar = matcher.grammar_from_lark(source["lark"])
        else:
            raise ValueError(f"it has no way to say {kind}")
        self._first = matcher(self._tokenizer, grammar, log_level=0)
        if self._first.is_error():
            raise ValueError(self._first.get_error())

    def forget(self) -> None: ...

    def start(self) -> None:
        self._matcher = self._first.deep_copy()

    def mask(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)

    def allowed(self, token: int) -> bool:
        return bool(int(self._row[token >> 5]) >> (token & 31) & 1)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def eos_ok(self) -> bool:
        return bool(self._matcher.is_accepting())

    def batch(self, beginnings: list[list[int]]) -> Callable[[], Any]:
        rows = np.full((len(beginnings), len(self._row)), -1, np.int32)
        matchers = [self._first.deep_copy() for _ in beginnings]
        for matcher, tokens in zip(matchers, beginnings, strict=True):
            matcher.consume_tokens(tokens)
        executor = self._llg.LLExecutor(num_threads=1)
        work = [(matcher, i) for i, matcher in enumerate(matchers)]
        return lambda: executor.unsafe_compute_mask_ptr(work, rows.ctypes.data, rows.strides[0], len(rows))

    def memory(self) -> None:
        """It does not say."""

    def version(self) -> str:
        return version("llguidance")


class XGrammar:
    """With the settings that keep to the specification: not strict, any white space, nothing cached."""

    package = "xgrammar"

    def __init__(self, vocabulary: Any) -> None:
        import xgrammar

        self._xgr, self._eos = xgrammar, vocabulary.eos
        tokens = [b""] * vocabulary.n_special + list(vocabulary.tokens)
        info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=[vocabulary.eos]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.size)
        self._row = self._bitmask.numpy()[0]
        self.info: dict[str, Any] = {}

    def compile(self, kind: str, source: Any) -> None:
        if kind == "json":
            text = source if isinstance(source, str) else json.dumps(source)
            self._compiled = self._compiler.compile_json_schema(text, any_whitespace=True, strict_mode=False)
        elif kind == "any order":
            raise ValueError("its any_order drops required keys and uniqueness")
        elif kind == "regex":
            self._compiled = self._compiler.compile_regex(source)
        else:
            self._compiled = self._compiler.compile_grammar(source["gbnf"])

    def forget(self) -> None: ...

    def start(self) -> None:
        self._matcher = self._xgr.GrammarMatcher(self._compiled)

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bitmask)

    def allowed(self, token: int) -> bool:
        return bool(int(self._row[token >> 5]) >> (token & 31) & 1)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def eos_ok(self) -> bool:
        self._bitmask.fill_(-1)
        self.mask()
        return self.allowed(self._eos)

    def batch(self, beginnings: list[list[int]]) -> Callable[[], Any]:
        matchers = [self._xgr.GrammarMatcher(self._compiled) for _ in beginnings]
        for matcher, tokens in zip(matchers, beginnings, strict=True):
            for token in tokens:
                matcher.accept_token(token)
        rows = self._xgr.allocate_token_bitmask(len(matchers), 32 * self._bitmask.shape[1])
        batch = self._xgr.BatchGrammarMatcher(max_threads=1)
        return lambda: batch.batch_fill_next_token_bitmask(matchers, rows)

    def memory(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def version(self) -> str:
        return version("xgrammar")


ENGINES: dict[str, Any] = {"sgl": Sgl, "sgl-any-order": AnyOrder, "llguidance": LlGuidance, "xgrammar": XGrammar}
