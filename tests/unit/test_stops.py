"""StopChecker against a slow oracle that searches the whole text after every token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
import tiny_tokenizers as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.stop_checker import GenerationFinish, StopChecker
from sgl.runtime.text.stop_strings import StopStrings
from sgl.runtime.text.tokenizer import Tokenizer

TOKENIZER = tiny.byte_level()
EOS = TOKENIZER.eos_ids[0]
ALPHABET = "ab\n é👍"

texts = st.text(ALPHABET, max_size=25)
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4).map(tuple)
regex_lists = st.lists(st.sampled_from(["a+b", "é$", "(?<=b)a", "\\n\\n", "b(?=a)", "a.*b"]), max_size=2).map(tuple)


@st.composite
def token_streams(draw: st.DrawFn) -> list[int]:
    """Whole text in tokens, or in single bytes, with a stray token now and then."""
    ids: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        encoded = TOKENIZER.encode(draw(texts), parse_special=False).tolist()
        if draw(st.booleans()):
            singles = {token: i for i, token in enumerate(TOKENIZER.token_bytes) if len(token) == 1}
            encoded = [singles[bytes([byte])] for i in encoded for byte in TOKENIZER.token_bytes[i]]
        ids += encoded
        ids += draw(st.sampled_from([[], [], [EOS], [TOKENIZER.token_id("<|im_start|>")], [97], [200]]))
    return ids


params_list = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([1, 3, 8, 1000]),
    min_tokens=st.sampled_from([0, 0, 1, 4]),
    stop=stop_lists,
    stop_regex=regex_lists,
    stop_token_ids=st.sampled_from([(), (200,), (97,)]),
    ignore_eos=st.booleans(),
    keep_stop=st.booleans(),
    skip_special_tokens=st.booleans(),
)


def whole(ids: list[int], params: SamplingParams) -> str:
    """Decoded text; an unfinished character at the end is not shown."""
    table = TOKENIZER.visible_bytes(params.skip_special_tokens)
    follower = TOKENIZER.detokenizer(params.skip_special_tokens)
    assert len(table) == TOKENIZER.vocab_size
    return "".join(follower.push(i) for i in ids)


def flushed(ids: list[int], params: SamplingParams) -> str:
    table = TOKENIZER.visible_bytes(params.skip_special_tokens)
    return b"".join(table[i] for i in ids).decode("utf-8", "replace")


def oracle(
    ids: list[int], params: SamplingParams, replaced: Sequence[int] = ()
) -> tuple[dict[str, object], str] | None:
    """(reason, text) by looking at the whole text after every token.

    The text of the first min_tokens tokens is not searched, as they are now and as they came (`replaced`).
    """
    first = (list(ids[: params.min_tokens]), list(replaced[: params.min_tokens]))
    least = max(len(whole(tokens, params)) for tokens in first)
    ends = set() if params.ignore_eos else {EOS, *params.stop_token_ids}
    for count in range(1, len(ids) + 1):
        seen = ids[:count]
        if count >= params.max_tokens:
            return {"type": "length", "length": count}, flushed(seen, params)
        if seen[-1] in ends:
            kept = seen if params.keep_stop and seen[-1] in params.stop_token_ids else seen[:-1]
            return {"type": "stop", "matched": seen[-1]}, flushed(kept, params)
        text = whole(seen, params)
        if text == whole(seen[:-1], params) or count <= params.min_tokens:
            continue
        for stop in params.stop:
            at = text.find(stop, least)
            if at >= 0:
                return {"type": "stop", "matched": stop}, text[: at + len(stop) * params.keep_stop]
        for pattern in params.stop_regex:
            if re.compile(pattern).search(text, least):
                return {"type": "stop", "matched": pattern}, flushed(seen, params)
    return None


def feed(checker: StopChecker, ids: list[int]) -> GenerationFinish | None:
    return next((finish for i in ids if (finish := checker.push(i))), None)


@settings(max_examples=400)
@given(ids=token_streams(), params=params_list)
def test_finish_like_the_oracle(ids: list[int], params: SamplingParams) -> None:
    checker = StopChecker(params, TOKENIZER)
    finish = feed(checker, ids)
    expected = oracle(ids, params)
    if expected is None:
        assert finish is None
        assert checker.text == whole(ids, params)
        finish = checker.close({"type": "abort"})
        assert finish.text == flushed(ids, params)
    else:
        assert finish is not None
        assert (finish.reason, finish.text) == expected
    assert checker.text == finish.text
    check_cut(finish, ids, params)


def check_cut(finish: GenerationFinish, ids: list[int], params: SamplingParams) -> None:
    """Kept tokens and remainder make up the text, and no further token would have fitted whole."""
    kept = ids[: finish.kept]
    if finish.remainder:
        assert whole(kept, params) + finish.remainder == finish.text
        assert flushed(kept, params) == whole(kept, params)
    else:
        assert flushed(kept, params) == finish.text
    longer = flushed(ids[: finish.kept + 1], params)
    if finish.remainder and finish.kept < len(ids) and "\ufffd" not in longer:
        assert not finish.text.startswith(longer)


@settings(max_examples=400)
@given(ids=token_streams(), params=params_list, every=st.integers(1, 3))
def test_streamed_chunks_add_up_and_never_show_a_trimmed_stop(
    ids: list[int], params: SamplingParams, every: int
) -> None:
    checker = StopChecker(params, TOKENIZER)
    shown = ""
    finish = None
    for count, token in enumerate(ids):
        finish = checker.push(token)
        if finish:
            break
        if count % every == 0:
            shown += checker.take()
            assert checker.text.startswith(shown)
    finish = finish or checker.close({"type": "abort"})
    assert finish.text.startswith(shown)
    assert shown + checker.take() == finish.text
    assert checker.take() == ""


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_no_more_is_held_back_than_may_begin_a_stop(text: str, stops: list[str]) -> None:
    automaton = StopStrings(stops)
    state = 0
    for end, char in enumerate(text, 1):
        state, match = automaton.scan(state, char)
        if match:
            break
        held = max(n for n in range(end + 1) if any(stop.startswith(text[end - n : end]) for stop in stops))
        assert automaton.depth[state] == held


@given(
    text=st.text("ab", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_the_automaton_finds_what_a_search_finds(text: str, stops: list[str]) -> None:
    automaton = StopStrings(stops)
    _, match = automaton.scan(0, text)
    found = [stop for stop in stops if stop in text]
    if not found:
        assert match is None
        return
    assert match is not None
    assert (match.stop, match.start) == (found[0], text.find(found[0]))
    assert text[match.start : match.end] == match.stop


@settings(max_examples=200)
@given(data=st.data(), params=params_list)
def test_rewritten_tokens_are_as_if_they_had_come_so(data: st.DataObject, params: SamplingParams) -> None:
    """Tokens of a text, the last of them replaced by other tokens of the same bytes and more."""
    params = replace(params, stop_token_ids=(), max_tokens=1000)
    text, more = data.draw(texts), data.draw(texts)
    old = TOKENIZER.encode(text, parse_special=False).tolist()
    drop = data.draw(st.integers(0, len(old)))
    table = TOKENIZER.token_bytes
    singles = {token: i for i, token in enumerate(table) if len(token) == 1}
    tail = b"".join(table[i] for i in old[len(old) - drop :]) + more.encode()
    new = [singles[bytes([byte])] for byte in tail]
    checker = StopChecker(params, TOKENIZER)
    if feed(checker, old):
        return
    shown = checker.take()
    finish = checker.rewrite(drop, new)
    final = old[: len(old) - drop] + new
    expected = oracle(final, params, old)
    if expected is None:
        assert finish is None
        assert checker.token_ids == final
        finish = checker.close({"type": "abort"})
    elif any("$" in p or "?" in p for p in params.stop_regex):
        return  # what a regex sees depends on where the text was looked at
    else:
        assert finish is not None
        assert (finish.reason, finish.text) == expected
    check_cut(finish, final, params)
    assert shown + checker.take() == finish.text


@pytest.mark.parametrize(("order", "kept_letters"), [((1, 0), 1), ((0, 1), 0)])
def test_the_order_of_the_list_decides(order: tuple[int, ...], kept_letters: int) -> None:
    pair = next(t for t in TOKENIZER.token_bytes if len(t) == 2 and t.isalpha() and t[0] != t[1]).decode()
    checker = StopChecker(SamplingParams(stop=tuple(pair[i] for i in order)), TOKENIZER)
    finish = feed(checker, [TOKENIZER.token_bytes.index(b"X"), TOKENIZER.token_bytes.index(pair.encode())])
    assert finish is not None
    assert finish.text == "X" + pair[:kept_letters]
    assert (finish.kept, finish.remainder) == (1, pair[:kept_letters])


def test_the_last_permitted_token_is_not_trimmed() -> None:
    ids = TOKENIZER.encode("ab\n").tolist()
    checker = StopChecker(SamplingParams(max_tokens=len(ids), stop=("\n",)), TOKENIZER)
    finish = feed(checker, ids)
    assert finish == GenerationFinish({"type": "length", "length": len(ids)}, "ab\n", len(ids))


def test_an_end_token_at_the_limit_leaves_no_token() -> None:
    ids = [*TOKENIZER.encode("ab").tolist(), EOS]
    checker = StopChecker(SamplingParams(max_tokens=len(ids)), TOKENIZER)
    finish = feed(checker, ids)
    assert finish is not None
    assert (finish.reason["type"], finish.text, finish.kept) == ("length", "ab", len(ids) - 1)


def test_every_declared_eos_ends() -> None:
    for token in (1, 3):
        finish = StopChecker(SamplingParams(), TOKENIZER, eos_ids=(1, 3)).push(token)
        assert finish == GenerationFinish({"type": "stop", "matched": token}, "", 0)


def test_a_stop_that_begins_inside_a_token_of_a_split_character() -> None:
    """é arrives in two halves, the second half together with the stop."""
    table = TOKENIZER.token_bytes
    singles = {token: i for i, token in enumerate(table) if len(token) == 1}
    tokenizer: Tokenizer = tiny.byte_level()
    ids = [singles[b"a"], singles[b"\xc3"], singles[b"\xa9"], singles[b"S"]]
    finish = feed(StopChecker(SamplingParams(stop=("éS",)), tokenizer), ids)
    assert finish == GenerationFinish({"type": "stop", "matched": "éS"}, "a", 1)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"temperature": -1}, "temperature must be in [0, inf), got -1"),
        ({"temperature": float("nan")}, "got nan"),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0"),
        ({"top_k": 0}, "top_k must be an integer of at least 1; -1 means all, got 0"),
        ({"min_p": 1.5}, "min_p must be in [0, 1]"),
        ({"frequency_penalty": 3}, "[-2, 2]"),
        ({"repetition_penalty": 0}, "(0, 2]"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty=5e-324 is beyond single precision"),
        ({"top_p": 1e-300}, "top_p=1e-300 is beyond single precision"),
        ({"temperature": 1e308}, "temperature=1e+308 is beyond single precision"),
        ({"logit_bias": {9: 1e308}}, "logit_bias[9]"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens=9"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": "abc"}, "write stop=(text,)"),
        ({"stop": ("",)}, "empty string"),
        ({"stop": ("ab" * 3000, "c" * 5000)}, "stop has 11000 characters in all"),
        ({"stop_regex": ("(",)}, "not a regular expression"),
        ({"logit_bias": {9: float("inf")}}, "logit_bias[9]"),
        ({"stop_token_ids": (600,)}, "below 500, got 600"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_params_say_what_is_wrong(options: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(part)):
        SamplingParams(**options).validate(vocab_size=500)  # type: ignore[arg-type]


def test_good_params_pass() -> None:
    SamplingParams().validate()
    SamplingParams(temperature=0, top_k=1, stop=("a",), logit_bias={3: -100, 4: -float("inf")}).validate(10)
