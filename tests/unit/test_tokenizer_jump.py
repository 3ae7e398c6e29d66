"""Jump-forward: the text is the same with and without, and made of the tokens the model knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_tokenizers as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.sequences.jump_cache import JumpCache
from sgl.runtime.sequences.jump_forward import JumpForward, JumpForwardEdit, _successor, _whole_characters
from sgl.runtime.text.tokenizer import Tokenizer

BYTE_LEVEL, METASPACE = tiny.byte_level(), tiny.metaspace()
JUMPERS = {tokenizer: JumpForward(tokenizer) for tokenizer in (BYTE_LEVEL, METASPACE)}
TOKENIZERS = [pytest.param(BYTE_LEVEL, id="byte-level"), pytest.param(METASPACE, id="byte-fallback")]


class FiniteMatcher:
    """The slow, obvious matcher of a finite set of texts."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = [text.encode() for text in texts]
        self.accepted: list[int] = []

    @property
    def done(self) -> bytes:
        return b"".join(self.tokenizer.token_bytes[i] for i in self.accepted)

    def rests(self, more: bytes = b"") -> list[bytes]:
        done = self.done + more
        return [text[len(done) :] for text in self.texts if text.startswith(done)]

    def allowed(self, token: int) -> bool:
        data = self.tokenizer.token_bytes[token]
        return bool(data) and token not in self.tokenizer.special_ids and bool(self.rests(data))

    def mask(self) -> np.ndarray:
        bits = np.array([self.allowed(i) for i in range(self.tokenizer.vocab_size)])
        bits = np.pad(bits, (0, -len(bits) % 32))
        return np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> bool:
        if self.allowed(token):
            self.accepted.append(token)
            return True
        return False

    def rollback(self, count: int) -> None:
        assert 0 <= count <= len(self.accepted)
        del self.accepted[len(self.accepted) - count :]

    def forced(self) -> bytes:
        rests = self.rests()
        shared = 0
        while all(shared < len(rest) and rest[shared] == rests[0][shared] for rest in rests):
            shared += 1
        return rests[0][:shared]

    @property
    def complete(self) -> bool:
        return self.done in self.texts


def canonical_model(tokenizer: Tokenizer, target: str) -> Callable[[list[int]], int | None]:
    """Writes `target`: the canonical token where it stands on a canonical border, else the longest that fits."""
    canonical = tokenizer.encode(target, parse_special=False).tolist()
    table = tokenizer.token_bytes
    borders = dict(zip(np.cumsum([0] + [len(table[i]) for i in canonical]).tolist(), canonical, strict=False))
    whole = target.encode()

    def choose(output: list[int]) -> int | None:
        at = sum(len(table[i]) for i in output)
        if at in borders:
            return borders[at]
        fitting = [i for i, t in enumerate(table) if t and i not in tokenizer.special_ids and whole.startswith(t, at)]
        return max(fitting, key=lambda i: (len(table[i]), -i), default=None)

    return choose


def generate(
    matcher: Any, choose: Callable[[list[int]], int | None], jumper: JumpForward | None, table: list[bytes]
) -> tuple[list[int], int]:
    """(tokens, how many the model was asked for) of a run to the end of the model's text."""
    output: list[int] = []
    asked = 0
    while True:
        if jumper is not None and (jump := jumper.jump(matcher, output)) is not None:
            apply(output, jump, table)
        token = choose(output)
        if token is None:
            return output, asked
        asked += 1
        assert matcher.accept(token)
        output.append(token)


def apply(output: list[int], jump: JumpForwardEdit, table: list[bytes]) -> None:
    before = b"".join(table[i] for i in output)
    del output[len(output) - jump.drop :]
    output += jump.token_ids
    after = b"".join(table[i] for i in output)
    assert after.startswith(before)
    assert len(after) > len(before)


words = st.sampled_from(
    ["John", " Smith", "naïve", "name", "日本", "👩‍👩‍👧", "a", "the ", "stop", '"', "\\n", "  ", "42"]
)
strings = st.lists(words, max_size=3).map("".join)
documents = st.one_of(
    st.fixed_dictionaries({"name": strings, "age": st.integers(0, 99)}),
    st.fixed_dictionaries({"name": strings, "tags": st.lists(strings, max_size=2), "ok": st.booleans()}),
    st.fixed_dictionaries({"answer": st.sampled_from(["Yes", "No", "Yes."]), "id": st.none()}),
)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(values=st.lists(documents, min_size=1, max_size=4), compact=st.booleans(), data=st.data())
def test_the_same_text_with_jumps_and_without(
    tokenizer: Tokenizer, values: list[Any], compact: bool, data: st.DataObject
) -> None:
    separators = (",", ":") if compact else None
    texts = [json.dumps(value, separators=separators, ensure_ascii=False) for value in values]
    texts = [t for t in texts if not any(other != t and other.startswith(t) for other in texts)]
    target = data.draw(st.sampled_from(texts))
    choose = canonical_model(tokenizer, target)
    table = tokenizer.token_bytes
    plain, asked_plain = generate(FiniteMatcher(tokenizer, texts), choose, None, table)
    matcher = FiniteMatcher(tokenizer, texts)
    jumped, asked = generate(matcher, choose, JUMPERS[tokenizer], table)
    assert tokenizer.decode(plain) == tokenizer.decode(jumped) == target
    assert matcher.accepted == jumped
    assert matcher.complete
    assert asked <= asked_plain
    if len(set(texts)) == 1:
        assert asked == 0
        assert jumped == tokenizer.encode(target, parse_special=False).tolist()


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(max_examples=30, deadline=None)
@given(values=st.lists(documents, min_size=2, max_size=4), limit=st.integers(0, 12), data=st.data())
def test_a_refused_jump_moves_nothing(tokenizer: Tokenizer, values: list[Any], limit: int, data: st.DataObject) -> None:
    texts = sorted({json.dumps(value, ensure_ascii=False) for value in values})
    matcher = FiniteMatcher(tokenizer, texts)
    target = data.draw(st.sampled_from(texts))
    canonical = tokenizer.encode(target, parse_special=False).tolist()
    for token in canonical[: data.draw(st.integers(0, len(canonical)))]:
        assert matcher.accept(token)
    output = list(matcher.accepted)
    jump = JUMPERS[tokenizer].jump(matcher, output, limit)
    if jump is None:
        assert matcher.accepted == output
        return
    apply(output, jump, tokenizer.token_bytes)
    assert matcher.accepted == output
    assert len(output) <= limit


def test_the_run_ends_where_a_longer_token_may_be_meant() -> None:
    table = BYTE_LEVEL.token_bytes
    longer = next(t for t in table if len(t) == 3 and t.isalpha() and t[:2] in table).decode()
    run = "42\n\n" + longer[:2]
    open_end = FiniteMatcher(BYTE_LEVEL, [run + longer[2:], run + "!"])
    closed_end = FiniteMatcher(BYTE_LEVEL, [run + "!", run + "?"])
    kept = [JUMPERS[BYTE_LEVEL].jump(matcher, []) for matcher in (open_end, closed_end)]
    texts = ["" if jump is None else BYTE_LEVEL.decode(jump.token_ids) for jump in kept]
    assert texts == ["42\n\n", run]


def test_tokens_across_the_border_are_the_model_s() -> None:
    """The model wrote `"` and `":` is forced: one token `":` is what it would have written."""
    joint = next(i for i, t in enumerate(BYTE_LEVEL.token_bytes) if t == b'":')
    quote = BYTE_LEVEL.token_bytes.index(b'"')
    matcher = FiniteMatcher(BYTE_LEVEL, ['":{}x', '":{}y'])
    assert matcher.accept(quote)
    jump = JUMPERS[BYTE_LEVEL].jump(matcher, [quote])
    assert jump is not None
    assert (jump.drop, jump.token_ids[0]) == (1, joint)


def test_the_model_s_own_uncommon_tokens_stay() -> None:
    """`name` written letter by letter is not mended by a jump behind it."""
    table = BYTE_LEVEL.token_bytes
    letters = [table.index(bytes([byte])) for byte in b"name"]
    assert BYTE_LEVEL.encode("name").tolist() != letters
    matcher = FiniteMatcher(BYTE_LEVEL, ['name": 12', 'name": 13'])
    assert all(matcher.accept(i) for i in letters)
    jump = JUMPERS[BYTE_LEVEL].jump(matcher, letters)
    assert jump is not None
    assert jump.drop == 0


def test_half_a_forced_character_waits() -> None:
    matcher = FiniteMatcher(BYTE_LEVEL, ["42\n\né", "42\n\nè"])
    assert matcher.forced() == b"42\n\n\xc3"
    jump = JUMPERS[BYTE_LEVEL].jump(matcher, [])
    assert jump is not None
    assert BYTE_LEVEL.decode(jump.token_ids) == "42\n\n"


def test_short_runs_are_left_to_the_model() -> None:
    assert JUMPERS[BYTE_LEVEL].jump(FiniteMatcher(BYTE_LEVEL, ["ab", "ac"]), []) is None


@given(st.text(max_size=6), st.integers(0, 3))
def test_whole_characters(text: str, cut: int) -> None:
    data = text.encode()
    part = data[: max(0, len(data) - cut)]
    assert _whole_characters(part) == part.decode("utf-8", "ignore").encode()


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=4))
def test_successor(prefix: bytes, more: bytes) -> None:
    assert prefix <= prefix + more < _successor(prefix)


SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "kind": {"enum": ["red", "green", "really green"]},
            "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["kind", "items"],
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("schema", SCHEMAS, ids=["person", "things"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_walks_through_schemas_end_in_valid_documents(
    tokenizer: Tokenizer, schema: dict[str, Any], seed: int
) -> None:
    grammars = pytest.importorskip("sgl.grammars")
    jsonschema = pytest.importorskip("jsonschema")
    if not hasattr(grammars, "compile_json_schema"):
        pytest.skip("the grammars are not there yet")
    vocabulary = grammars.Vocabulary.from_tokenizer(tokenizer)
    matcher = grammars.compile_json_schema(schema, vocabulary, whitespace="compact").matcher()
    rng = np.random.default_rng(seed)
    output: list[int] = []
    jumper = JUMPERS[tokenizer]
    remembered = JumpCache(jumper)
    while not matcher.finished and len(output) < 400:
        limit = len(output) + int(rng.integers(12))
        for limited in (None, limit, None):  # the last time as it was found the first time
            plain, quick = matcher.copy(), matcher.copy()
            assert remembered.jump(quick, output, limited) == jumper.jump(plain, output, limited)
            assert quick.last(400) == plain.last(400)
        if (jump := remembered.jump(matcher, output)) is not None:
            apply(output, jump, tokenizer.token_bytes)
            continue
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        token = int(rng.choice(np.flatnonzero(bits)))
        assert matcher.accept(token)
        output.append(token)
    text = tokenizer.decode(output)
    jsonschema.validate(json.loads(text), schema)
    assert matcher.accepted == len(output)
