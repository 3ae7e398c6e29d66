"""Structural tags that tokens open and end, compared with derivatives of a
regular expression over letters and tokens.
"""

from __future__ import annotations

import random

import pytest
from grammar_support import CORES, many

from sgl.grammars import Grammar, Vocabulary, compile_structural
from sgl.grammars.schema.schema_builder import SchemaOptions
from sgl.grammars.structural.structural_format import format_expr

TOKENS = [b"a", b"b", b"ab", b"<s>", b"<t>", b"<u>", b"<eos>"]
END, SPECIAL = 6, (3, 4, 5)
VOCABULARY = Vocabulary.from_bytes(TOKENS, [END], SPECIAL)
NONE, EMPTY = ("none",), ("empty",)
ANY = frozenset(range(END))


def among(symbols):
    return ("among", frozenset(symbols)) if symbols else NONE


def then(left, right):
    if NONE in (left, right):
        return NONE
    return right if left == EMPTY else left if right == EMPTY else ("then", left, right)


def either(*all_of):
    found = {one for one in all_of if one != NONE}
    found = {inner for one in found for inner in (one[1] if one[0] == "either" else (one,))}
    return NONE if not found else found.pop() if len(found) == 1 else ("either", frozenset(found))


def star(one):
    return EMPTY if one in (NONE, EMPTY) else ("star", one)


def letters(text):
    found = EMPTY
    for letter in text:
        found = then(found, among({letter}))
    return found


def may_end(one):
    if one[0] == "either":
        return any(map(may_end, one[1]))
    return one[0] in ("empty", "star") or (one[0] == "then" and may_end(one[1]) and may_end(one[2]))


def after(one, symbol):
    """Brzozowski's derivative."""
    if one[0] == "among":
        return EMPTY if symbol in one[1] else NONE
    if one[0] == "either":
        return either(*(after(inner, symbol) for inner in one[1]))
    if one[0] == "star":
        return then(after(one[1], symbol), one)
    if one[0] == "then":
        return either(then(after(one[1], symbol), one[2]), after(one[2], symbol) if may_end(one[1]) else NONE)
    return NONE


def after_token(readings, token):
    """A token is itself, or its letters."""
    found = {after(one, token) for one in readings}
    if token not in SPECIAL:
        spelled = readings
        for letter in TOKENS[token].decode():
            spelled = {after(one, letter) for one in spelled}
        found |= spelled
    return found - {NONE}


class Writer:
    """Random formats, with the expression that each means."""

    def __init__(self, rng):
        self.rng = rng

    def name(self, token):
        return self.rng.choice([token, TOKENS[token].decode()])

    def of(self, depth, ending=()):
        """A format where the nearest tag around it ends with a token, or with none."""
        return getattr(
            self,
            self.rng.choice(
                ["text", "token", "any_tokens"]
                if depth == 0
                else ["both", "tag", "triggered", "triggered", "dispatch", "dispatch"]
            ),
        )(depth, ending)

    def text(self, depth, ending):
        value = self.rng.choice(["", "a", "ab"])
        return {"type": "const_string", "value": value}, letters(value)

    def token(self, depth, ending):
        if self.rng.random() < 0.5:
            excluded = self.excluded()
            return {"type": "exclude_token", "exclude_tokens": [self.name(t) for t in excluded]}, among(
                ANY - {*excluded, *ending}
            )
        token = self.rng.randrange(END)
        return {"type": "token", "token": self.name(token)}, among({token})

    def any_tokens(self, depth, ending):
        excluded = self.excluded()
        return {"type": "any_tokens", "exclude_tokens": [self.name(t) for t in excluded]}, star(
            among(ANY - {*excluded, *ending})
        )

    def excluded(self):
        return self.rng.sample(range(END), self.rng.randint(0, 2))

    def both(self, depth, ending):
        (left, some), (right, others) = self.of(depth - 1, ending), self.of(depth - 1, ending)
        kind = self.rng.choice(["sequence", "or"])
        return {"type": kind, "elements": [left, right]}, then(some, others) if kind == "sequence" else either(
            some, others
        )

    def tag(self, depth, ending, begin=None):
        begin = self.rng.choice(SPECIAL) if begin is None else begin
        end = self.rng.choice([None, *range(END)])
        content, meant = self.of(depth - 1, () if end is None else (end,))
        whole = then(among({begin}), then(meant, letters("b") if end is None else among({end})))
        spec = {"type": "tag", "begin": {"type": "token", "token": self.name(begin)}, "content": content}
        return spec | {"end": "b" if end is None else {"type": "token", "token": self.name(end)}}, whole

    def triggered(self, depth, ending):
        triggers = self.rng.sample(SPECIAL, self.rng.randint(1, 2))
        tags = [self.tag(depth, ending, trigger) for trigger in [*triggers, triggers[0]]]
        excluded, least, once = self.excluded(), self.rng.random() < 0.5, self.rng.random() < 0.5
        free, opened = among(ANY - {*excluded, *ending, *triggers}), either(*(meant for _, meant in tags))
        if least:
            meant = opened if once else then(opened, star(either(free, opened)))
        else:
            meant = then(star(free), either(EMPTY, opened)) if once else star(either(free, opened))
        names = {"trigger_tokens": [self.name(t) for t in triggers], "exclude_tokens": [self.name(t) for t in excluded]}
        return {
            "type": "token_triggered_tags",
            **names,
            "tags": [tag for tag, _ in tags],
            "at_least_one": least,
            "stop_after_first": once,
        }, meant

    def dispatch(self, depth, ending):
        tokens = [self.rng.randrange(END) for _ in range(self.rng.randint(1, 2))]
        contents = [self.of(depth - 1, ending) for _ in tokens]
        excluded, loop = self.excluded(), self.rng.random() < 0.5
        free = among(ANY - {*excluded, *ending, *tokens})
        opened = either(*(then(among({token}), meant) for token, (_, meant) in zip(tokens, contents, strict=True)))
        rules = [[self.name(token), content] for token, (content, _) in zip(tokens, contents, strict=True)]
        spec = {
            "type": "token_dispatch",
            "rules": rules,
            "loop": loop,
            "exclude_tokens": [self.name(t) for t in excluded],
        }
        return spec, star(either(free, opened)) if loop else then(star(free), either(EMPTY, opened))


def compare(matcher, readings, depth):
    allowed = {token for token in range(END) if after_token(readings, token)} | (
        {END} if any(map(may_end, readings)) else set()
    )
    row = matcher.mask()
    assert {i for i in range(len(TOKENS)) if int(row[i >> 5]) >> (i & 31) & 1} == allowed
    assert matcher.can_end == (END in allowed)
    for token in sorted(allowed - {END}) if depth else ():
        assert matcher.accept(token)
        compare(matcher, after_token(readings, token), depth - 1)
        matcher.rollback(1)


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", range(many(40)))
def test_random_formats_of_tokens(seed):
    spec, meant = Writer(random.Random(seed)).of(2)
    core = CORES[seed % len(CORES)]
    compare(Grammar(format_expr(spec, SchemaOptions(), VOCABULARY), VOCABULARY, core).matcher(), {meant} - {NONE}, 3)


def test_tags_in_text_may_end_with_tokens_and_lists_of_tags_may_begin_with_them():
    content = {"type": "any_text"}
    call = {"type": "tag", "begin": "ab", "content": content, "end": {"type": "token", "token": "<t>"}}
    matcher = compile_structural({"type": "triggered_tags", "triggers": ["ab"], "tags": [call]}, VOCABULARY).matcher()
    assert all(map(matcher.accept, (1, 0, 1, 2, 2))) and not matcher.can_end and not matcher.accept(3)
    assert matcher.accept(4) and matcher.can_end and not matcher.accept(4) and matcher.accept(0)
    listed = {
        "type": "tags_with_separator",
        "tags": [{**call, "begin": {"type": "token", "token": 3}}],
        "separator": "b",
    }
    matcher = compile_structural(listed, VOCABULARY).matcher()
    assert not matcher.accept(0) and all(map(matcher.accept, (3, 0, 4, 1, 3, 4))) and matcher.can_end


def test_a_token_ends_free_text_in_a_sequence():
    token = {"type": "token", "token": "<t>"}
    for following in (
        token,
        {"type": "tag", "begin": token, "content": {"type": "const_string", "value": ""}, "end": ""},
    ):
        spec = {"type": "sequence", "elements": [{"type": "any_text", "excludes": ["ba"]}, following]}
        matcher = compile_structural(spec, VOCABULARY).matcher()
        assert (
            all(map(matcher.accept, (0, 2, 1)))
            and not matcher.can_end
            and not matcher.accept(2)
            and not matcher.accept(3)
        )
        assert matcher.accept(4) and matcher.finished
