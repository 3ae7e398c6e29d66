"""Structural tags against a splitter that reads texts the obvious way, and the request forms."""

import itertools
import json
import random
import re

import pytest
from grammar_support import CORES, accepts, allowed, automaton, byte_vocabulary, many, tokens_by_bytes, walk

from sgl.grammars import (
    GrammarLimitError,
    InvalidGrammarError,
    UnsupportedGrammarError,
    compile_json_schema,
    compile_structural,
    reasoning,
)
from sgl.grammars.algebra.expr import PLAIN_ALWAYS, Literal
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.schema_builder import SchemaOptions
from sgl.grammars.structural.free_text import until
from sgl.grammars.structural.structural_format import format_expr
from sgl.grammars.structural.structural_tags import structural_expr, tag

VOCABULARY = byte_vocabulary([b"<tool", b"_call>", b"</", b'{"', b"call me", b" a", b"</tool_call>", b"ab<"])

CASES = {  # triggers (None: the begins), tags as (begin, content regex or None for free text, end), alphabet
    "plain": (["<"], [("<a", "b?", ">")], "<ab>"),
    "overlap": (["<a", "<<b"], [("<a", "b", "a"), ("<<b", "a*", "<")], "<ab"),
    "inside": (["aab", "ab"], [("aab", "c", ""), ("ab", "", "c"), ("abb", "", "")], "abc"),
    "inner": (["abc", "b"], [("abc", "c", ""), ("b", "a", "")], "abc"),
    "itself": (["aba"], [("aba", "a*", "b")], "ab"),
    "doubled": (["aa"], [("aab", "", "a"), ("aa", "b", "b")], "ab"),
    "prefix": (None, [("a", "b", ""), ("ab", "a?", "c")], "abc"),
    "until": (["<"], [("<", None, ">")], "<>a"),
    "until two": (["<"], [("<a", None, "aab")], "<ab"),
    "wide": (["é"], [("éa", "☂?", "é")], "éa☂"),
}
FLAGS = [(False, False), (True, False), (False, True), (True, True)]


def splits(text, at, case, at_least_one, stop):
    """Whether what follows a position of free text is in order."""
    triggers, tags, _ = case
    triggers = triggers or [begin for begin, _, _ in tags]
    ends = [e for e in range(at, len(text) + 1) if any(text[at:e].endswith(t) for t in triggers)]
    if not ends:
        return not at_least_one
    opened = [t for t in triggers if text[at : ends[0]].endswith(t)]
    rests = [(b[len(t) :], content, end) for t in opened for b, content, end in tags if b.startswith(t)]
    return any(
        after == len(text) if stop else splits(text, after, case, False, stop)
        for rest in rests
        for after in range(ends[0], len(text) + 1)
        if is_rest(text[ends[0] : after], *rest)
    )


def is_rest(text, begin, content, end):
    if content is not None:
        return re.fullmatch(re.escape(begin) + f"(?:{content})" + re.escape(end), text) is not None
    return text.startswith(begin) and text[len(begin) :].find(end) == len(text) - len(begin) - len(end) >= 0


def expression(case, at_least_one=False, stop=False, vocabulary=None):
    triggers, tags, _ = case
    made = [tag(b, None if c is None else parse_regex(c), e, vocabulary) for b, c, e in tags]
    return structural_expr(made, triggers, at_least_one=at_least_one, stop_after_first=stop, vocabulary=vocabulary)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_texts_are_those_of_the_splitter(name, flags):
    case = CASES[name]
    machine = automaton(expression(case, *flags), byte_vocabulary(), CORES[0])
    longest = 7 if len(case[2]) < 4 else 6
    right = set()
    for size in range(longest + 1):
        for letters in itertools.product(case[2], repeat=size):
            text = "".join(letters)
            state = machine.advance(machine.start, text.encode())
            wanted = splits(text, 0, case, *flags)
            assert (state >= 0 and machine.final(state)) == wanted, text
            right |= {text} if wanted else set()
            if state >= 0 and not wanted:
                end = machine.shortest_end(state).decode()
                assert splits(text + end, 0, case, *flags), (text, end)
    assert right


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", CASES)
def test_masks_are_those_of_brute_force(name, core):
    rng = random.Random(name)
    case = CASES[name]
    pieces = ["".join(rng.choices(case[2], k=rng.randint(2, 5))) for _ in range(60)]
    cut = [p.encode()[rng.randint(0, 1) :] for p in pieces]
    for vocabulary in (byte_vocabulary(cut), byte_vocabulary([b"xyz", b" \n", "xé".encode(), cut[0]])):
        machine = automaton(expression(case, vocabulary=vocabulary), vocabulary, core)
        for _ in range(25):
            text = "".join(rng.choices(case[2] + "x", k=rng.randint(0, 6))).encode()
            state = machine.advance(machine.start, text)
            if state >= 0:
                assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state), text


def dispatches(text, rules, loop, excludes):
    """Whether free text with patterns in it, each followed by its content, is in order."""
    whole = [*(pattern for pattern, _ in rules), *excludes]
    end = next((e for e in range(1, len(text) + 1) if any(text[:e].endswith(one) for one in whole)), None)
    if end is None:
        return True
    contents = [content for pattern, content in rules if text[:end].endswith(pattern)]
    rests = [
        text[end + size :]
        for content in contents
        for size in range(len(text) - end + 1)
        if re.fullmatch(content, text[end : end + size])
    ]
    return any(dispatches(rest, rules, loop, excludes) if loop else not rest for rest in rests)


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(many(20)))
def test_random_dispatch(seed):
    rng = random.Random(seed)
    alphabet = rng.choice(["ab", "abc", "éa"])
    rules = [
        ("".join(rng.choices(alphabet, k=rng.randint(1, 3))), rng.choice(["", "a", "a*", "(ab|b)?"]))
        for _ in range(rng.randint(1, 3))
    ]
    excludes = [
        e
        for e in ("".join(rng.choices(alphabet, k=2)) for _ in range(rng.randint(0, 2)))
        if not any(e in pattern for pattern, _ in rules)
    ]
    loop = rng.random() < 0.6
    spec = formatted(
        type="dispatch",
        rules=[[pattern, {"type": "regex", "pattern": content}] for pattern, content in rules],
        loop=loop,
        excludes=excludes,
    )
    vocabulary = byte_vocabulary([b"ab", b"aab", b"xx"])
    machine = automaton(format_expr(spec, SchemaOptions(), vocabulary), vocabulary, CORES[0])
    for letters in (letters for size in range(6) for letters in itertools.product(alphabet, repeat=size)):
        text = "".join(letters)
        state = machine.advance(machine.start, text.encode())
        assert (state >= 0 and machine.final(state)) == dispatches(text, rules, loop, excludes), text
        if state >= 0:
            assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state), text


def test_dispatch_ends_with_the_tag_around_it():
    inner = {"type": "dispatch", "rules": [["<f>", NUMBER]], "excludes": ["</r>", "!"]}
    grammar = compile_structural(formatted(type="tag", begin="<r>", content=inner, end="</r>"), VOCABULARY)
    for text in ("<r></r>", "<r>a<f>1b<f>2</r>"):
        assert accepts(grammar, text)
    for text in ("<r>", "<r>a<f>x</r>", "<r>!</r>", "<r></r></r>"):
        assert not accepts(grammar, text)
    grammar = compile_structural(
        formatted(type="sequence", elements=[{**inner, "loop": False}, {"type": "const_string", "value": "</r>"}]),
        VOCABULARY,
    )
    assert accepts(grammar, "a<f>1</r>") and accepts(grammar, "a</r>") and not accepts(grammar, "a<f>1a</r>")


def test_what_ends_free_text_may_begin_with_what_free_text_excludes():
    content = {"type": "any_text", "excludes": ["<|close|>", "<|sep|>", "</think>"]}
    grammar = compile_structural(
        formatted(type="tag", begin="", content=content, end=["<|close|>think<|sep|>", "</think>"]), VOCABULARY
    )
    for text in ("<|close|>think<|sep|>", "a<|close<|close|>think<|sep|>", "hm</think>"):
        assert accepts(grammar, text)
    for text in ("<|close|>a<|close|>think<|sep|>", "<|sep|><|close|>think<|sep|>", "<|close|>think<|sep|>a"):
        assert not accepts(grammar, text)


def random_case(rng):
    alphabet = rng.choice(["ab", "abc", "<a>", "éa"])

    def literal(least, most):
        return "".join(rng.choices(alphabet, k=rng.randint(least, most)))

    triggers = list(dict.fromkeys(literal(1, 3) for _ in range(rng.randint(1, 3))))
    tags = []
    for trigger in triggers * rng.randint(1, 2):
        content = rng.choice([None, "", "a", "a*", "(ab|b)?", f"[{alphabet}]{{0,2}}"])
        tags.append((trigger + literal(0, 2), content, literal(1 if content is None else 0, 2)))
    return (rng.choice([triggers, None]), tags, alphabet), [
        literal(2, 5).encode()[rng.randint(0, 1) :] for _ in range(12)
    ]


@pytest.mark.few(15)
@pytest.mark.parametrize("seed", range(many(40)))
def test_random_tags(seed):
    """Triggers that overlap, hold and repeat each other in every way, with tokens across them."""
    rng = random.Random(seed)
    case, pieces = random_case(rng)
    flags = rng.choice(FLAGS)
    vocabulary = byte_vocabulary([*pieces, b"xx"])
    machine = automaton(expression(case, *flags, vocabulary=vocabulary), vocabulary, CORES[0])
    for letters in (letters for size in range(5) for letters in itertools.product(case[2], repeat=size)):
        text = "".join(letters)
        state = machine.advance(machine.start, text.encode())
        assert (state >= 0 and machine.final(state)) == splits(text, 0, case, *flags), text
        if state >= 0:
            assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state), text


def test_free_text_promises_plain_text_only_where_no_token_completes_a_literal():
    vocabulary = byte_vocabulary([b"one", b"_call>", b"x<t>y"])

    def promises(awaited, spelled):
        graph, state = until([awaited], vocabulary), 0
        for char in spelled:
            state = next(target for item, target in graph.edges[state] if item == Literal(char.encode()))
        return graph.edges[state][0][0].plain == PLAIN_ALWAYS

    assert promises("</think>", "") and promises("</think>", "</thi")
    assert promises("<tool_call>", "") and promises("<tool_call>", "<too")
    assert not promises("<tool_call>", "<tool") and not promises("<tool_call>", "<tool_call")
    assert not promises("<t>", "") and not promises("<", "")
    assert promises('"', "") and promises("\n", "")


@pytest.mark.parametrize("text", ["", 'é☂😀\0\n"\\', "<tool_cal", "<tool_<tool", "</tool_call>", "<tool_call >"])
def test_free_text_may_be_anything(text):
    grammar = compile_structural(LEGACY, VOCABULARY)
    assert accepts(grammar, text)
    assert not accepts(grammar, text + "<tool_call>") and not accepts(grammar, text + "<tool_call>x")


def test_free_text_is_whole_utf8():
    grammar = compile_structural(LEGACY, VOCABULARY)
    matcher = grammar.matcher()
    assert matcher.accept(0xC3) and not matcher.can_end
    assert not matcher.accept(0x28) and matcher.accept(0xA9) and matcher.can_end
    assert not matcher.accept(0xFF)


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LEGACY = {
    "type": "structural_tag",
    "structures": [
        {"begin": '<tool_call>{"name": "weather", "arguments": ', "schema": WEATHER, "end": "}</tool_call>"},
        {"begin": '<tool_call>{"name": "time", "arguments": ', "schema": {"type": "null"}, "end": "}</tool_call>"},
    ],
    "triggers": ["<tool_call>"],
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'


def formatted(**format):
    return {"type": "structural_tag", "format": format}


PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NUMBER = {"type": "regex", "pattern": "[0-9]+"}
ANY = {"type": "any_text"}
XY = [
    {"begin": "<x>", "content": NUMBER, "end": "</x>"},
    {"type": "tag", "begin": "<y>", "content": ANY, "end": ["!", "?"]},
]
FORMATS = [
    (
        LEGACY,
        ["hm", CALL, f"a {CALL} b {CALL}<", '<tool_call>{"name": "time", "arguments": null}</tool_call>'],
        ["<tool_call>", CALL[:-1], CALL.replace("Ulm", '"'), "<tool_call>{}</tool_call>", CALL + "<tool_call>"],
    ),
    (formatted(type="const_string", value="yes"), ["yes"], ["", "yess"]),
    ({"type": "const_string", "value": "yes"}, ["yes"], ["no"]),
    (formatted(type="choices", choices=["a", "bc"]), ["a", "bc"], ["b"]),
    (formatted(type="json_schema", json_schema=WEATHER, style="json"), ['{"city":"x"}'], ["{}"]),
    (
        formatted(type="json_schema", json_schema=PAIR, any_order=True),
        ['{"a": 1, "b": 2}', '{"b":2,"a":1}'],
        ['{"b": 2}', '{"b": 2, "b": 1}'],
    ),
    (formatted(type="any_text"), ["", "é\n"], []),
    (formatted(type="any_text", excludes=["no"]), ["n", "on"], ["no", "xnox"]),
    (formatted(type="or", elements=[NUMBER, {"type": "const_string", "value": "x"}]), ["1", "x"], ["1x", ""]),
    (
        formatted(type="sequence", elements=[NUMBER, {"type": "const_string", "value": "x"}, NUMBER]),
        ["1x2"],
        ["1x", "x2"],
    ),
    (
        formatted(type="sequence", elements=[ANY, {"type": "const_string", "value": "=>"}, NUMBER]),
        ["=>1", "a=b=>1"],
        ["1", "a=>b=>1"],
    ),
    (formatted(type="sequence", elements=[]), [""], ["x"]),
    (formatted(type="optional", content=NUMBER), ["", "12"], ["x"]),
    (formatted(type="star", content={"type": "const_string", "value": "ab"}), ["", "abab"], ["a"]),
    (formatted(type="plus", content={"type": "const_string", "value": "ab"}), ["ab", "abab"], ["", "aba"]),
    (
        formatted(type="repeat", min=1, max=2, content={"type": "const_string", "value": "ab"}),
        ["ab", "abab"],
        ["", "ababab"],
    ),
    (formatted(type="repeat", min=2, max=-1, content={"type": "const_string", "value": "a"}), ["aa", "aaaa"], ["a"]),
    (formatted(type="tag", begin="<", content=ANY, end=">"), ["<>", "<a<b>"], ["<", "<>x", "a<>"]),
    (formatted(type="tag", begin="", content=NUMBER, end=[".", ""][:1]), ["1."], ["1", "."]),
    (
        formatted(type="triggered_tags", triggers=["<"], tags=XY),
        ["", "a<x>1</x>b<y>z<x>!c", "<y>?"],
        ["<", "<z", "<x></x>", "<x>1", "<y>a"],
    ),
    (
        formatted(type="triggered_tags", triggers=["<"], tags=XY, at_least_one=True),
        ["<x>1</x>", "<y>!x<y>?", "<x>1</x> and so on"],
        ["", "a<x>1</x>"],
    ),
    (formatted(type="triggered_tags", triggers=["<"], tags=XY, stop_after_first=True), ["", "a", "a<y>!"], ["<y>!a"]),
    (
        formatted(type="triggered_tags", triggers=["<"], tags=XY, at_least_one=True, stop_after_first=True),
        ["<y>!"],
        ["", "<y>!<y>!"],
    ),
    (formatted(type="triggered_tags", triggers=["<"], tags=XY, excludes=["no"]), ["n<y>no!o"], ["no", "<y>!no"]),
    (
        formatted(type="tag", begin="[", content={"type": "triggered_tags", "triggers": ["<"], "tags": XY}, end="]"),
        ["[]", "[a<y>]!b]", "[[]"],
        ["[", "[]]", "[<]"],
    ),
    (
        formatted(
            type="tag",
            begin="[",
            content={"type": "triggered_tags", "triggers": ["<"], "tags": XY, "stop_after_first": True},
            end="]",
        ),
        ["[]", "[a<y>!]"],
        ["[<y>!x]", "[<y>!"],
    ),
    (
        formatted(type="tags_with_separator", tags=XY, separator=", "),
        ["", "<y>!", "<x>1</x>, <y>?"],
        ["<y>!<y>!", "<y>!, ", "x"],
    ),
    (
        formatted(type="tags_with_separator", tags=XY, separator=",", at_least_one=True, stop_after_first=True),
        ["<y>!"],
        ["", "<y>!,<y>!"],
    ),
    (
        reasoning(NUMBER),
        ["<think></think>1", "<think>a</b>1</think>23"],
        ["1", "<think>1", "<think>a</think>b", "<think></think>"],
    ),
    (
        reasoning({"type": "json_schema", "json_schema": WEATHER}, begin="", end="\n\n"),
        ['hm\n\n{"city":""}', '\n\n{"city":""}'],
        ["hm\n\n", "{}"],
    ),
    (
        reasoning({"type": "triggered_tags", "triggers": ["<"], "tags": XY}),
        ["<think><x></think>a", "<think></think><y>!"],
        ["<think></think><"],
    ),
]


@pytest.mark.parametrize(("spec", "right", "wrong"), FORMATS, ids=lambda value: str(value)[:60])
def test_request_forms(spec, right, wrong):
    grammar = compile_structural(spec, VOCABULARY)
    assert compile_structural(json.dumps(spec), VOCABULARY) is grammar
    for text in right:
        assert accepts(grammar, text), text
    for text in wrong:
        assert not accepts(grammar, text), text


def test_the_grammar_format_is_ebnf():
    grammar = compile_structural(formatted(type="grammar", grammar='root ::= "a" root | "b"'), VOCABULARY)
    assert accepts(grammar, "aab") and not accepts(grammar, "aa")


def read_calls(text):
    """The names and arguments of the calls in a text; fails where something is not in order."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find("<tool_call>", at)) >= 0:
        begin = next(s["begin"] for s in LEGACY["structures"] if text.startswith(s["begin"], at))
        arguments, at = decoder.raw_decode(text, at + len(begin))
        assert text.startswith("}</tool_call>", at)
        at += len("}</tool_call>")
        found.append((begin.split('"')[3], arguments))
    return found


def test_generated_texts_are_in_order():
    rng = random.Random(5)
    pieces = [
        b"<tool_call>",
        b"<tool_call>{",
        b'<tool_call>{"name": "',
        b"weather",
        b"}</tool_call>",
        b"<too",
        b"l_call>",
    ]
    vocabulary = byte_vocabulary(pieces)
    names = set()
    for _ in range(60):
        matcher = compile_structural(LEGACY, vocabulary).matcher()
        text = b"so <tool_call>" if rng.random() < 0.8 else b""
        assert all(map(matcher.accept, text))
        for name, arguments in read_calls((text + walk(matcher, rng)).decode()):
            names.add(name)
            assert arguments is None if name == "time" else arguments.keys() == {"city"}
    assert names == {"time", "weather"}


OPENED = {"begin": {"type": "token", "token": 1}, "content": NUMBER, "end": "x"}
BAD = [
    ([], "JSON object", InvalidGrammarError),
    ("{", "not JSON", InvalidGrammarError),
    ({"type": "structural_tag"}, "structures", InvalidGrammarError),
    ({"type": "structural_tag", "structures": [], "triggers": []}, "structures", InvalidGrammarError),
    (LEGACY | {"triggers": ["<tool"] + ["<x"]}, r"no tag begins with the trigger '<x'", InvalidGrammarError),
    (LEGACY | {"triggers": ["<x"]}, "no trigger is the beginning of '<tool_call>", InvalidGrammarError),
    (LEGACY | {"triggers": [""]}, "empty literal", InvalidGrammarError),
    (LEGACY | {"triggers": ["<", 3]}, "not 3 .at #/triggers/1", InvalidGrammarError),
    (LEGACY | {"stop": 1}, "unknown field 'stop'", InvalidGrammarError),
    (
        LEGACY | {"structures": [{"begin": 3, "schema": {}, "end": ""}]},
        "not 3.*#/structures/0/begin",
        InvalidGrammarError,
    ),
    (
        LEGACY | {"structures": [{"begin": "<", "schema": 3, "end": ""}]},
        "not 3.*#/structures/0/schema",
        InvalidGrammarError,
    ),
    (LEGACY | {"structures": [{"begin": "<"}]}, "begin, schema and end.*#/structures/0", InvalidGrammarError),
    (formatted(type="dispatch", rules=[]), "at least one rule .at #/format/rules", InvalidGrammarError),
    (
        formatted(type="dispatch", rules=[["<", ANY]]),
        "any_text before free text.*#/format/rules/0/1",
        UnsupportedGrammarError,
    ),
    (formatted(type="dispatch", rules=[["<"]]), "a rule is a pair.*#/format/rules/0", InvalidGrammarError),
    (formatted(type="dispatch", rules=[[3, NUMBER]]), "not 3 .at #/format/rules/0/0", InvalidGrammarError),
    (formatted(type="dispatch", rules=[["", NUMBER]]), "empty literal", InvalidGrammarError),
    (formatted(type="dispatch", rules=[["<", NUMBER]], loop=1), "loop must be true or false", InvalidGrammarError),
    (formatted(type="dispatch", rules=[["<a", NUMBER]], excludes=["a"]), "'<a' can never occur", InvalidGrammarError),
    (formatted(type="token_dispatch", rules=[]), "at least one rule .at #/format/rules", InvalidGrammarError),
    (
        formatted(type="token_dispatch", rules=[[999, NUMBER]]),
        "999 of <.999.> is outside.*#/format/rules/0",
        InvalidGrammarError,
    ),
    (
        formatted(type="token_triggered_tags", trigger_tokens=[1], tags=XY),
        "begins with one, not with '<.*tags/0/begin",
        InvalidGrammarError,
    ),
    (formatted(type="token_triggered_tags", trigger_tokens=[1], tags=[]), "at least one tag", InvalidGrammarError),
    (
        formatted(type="token_triggered_tags", trigger_tokens=[1, 2], tags=[OPENED]),
        "no tag begins with the token 2 .at #/format/trigger_tokens/1",
        InvalidGrammarError,
    ),
    (
        formatted(type="token_triggered_tags", trigger_tokens=[2], tags=[OPENED]),
        "token 1 is none of the trigger_tokens",
        InvalidGrammarError,
    ),
    (formatted(type="any_txt"), "did you mean 'any_text'", UnsupportedGrammarError),
    (formatted(type=["tag"]), "a type", InvalidGrammarError),
    (formatted(type="regex", patern="a"), "no field 'patern'; did you mean 'pattern'", InvalidGrammarError),
    (formatted(type="regex"), "regex needs 'pattern'", InvalidGrammarError),
    (formatted(type="regex", pattern=3), "pattern must be a string, not 3", InvalidGrammarError),
    (formatted(type="regex", pattern="a("), "#/format/pattern", InvalidGrammarError),
    (formatted(type="regex", pattern="(?=a)"), "look-ahead.*#/format/pattern", UnsupportedGrammarError),
    (
        formatted(type="json_schema", json_schema={"type": "strin"}),
        "strin.*#/format/json_schema, #",
        InvalidGrammarError,
    ),
    (formatted(type="json_schema", json_schema=3), "#/format/json_schema", InvalidGrammarError),
    (formatted(type="json_schema", json_schema={}, style="minimax_m3_xml"), "minimax_m3_xml", UnsupportedGrammarError),
    (formatted(type="json_schema", json_schema={}, excludes=["<"]), "excludes", UnsupportedGrammarError),
    (
        formatted(type="json_schema", json_schema={}, any_order=1),
        "any_order must be true or false",
        InvalidGrammarError,
    ),
    (formatted(type="any_text", max_tokens=3), "max_tokens", UnsupportedGrammarError),
    (
        formatted(type="tag", begin={"type": "token", "token": 999}, content=ANY, end="x"),
        "999 of <.999.> is outside",
        InvalidGrammarError,
    ),
    (formatted(type="token", token=True), "token must be a token's number or text, not True", InvalidGrammarError),
    (formatted(type="any_tokens", exclude_tokens=[-1]), "#/format/exclude_tokens/0", InvalidGrammarError),
    (formatted(type="any_tokens", max_tokens=-1), "#/format/max_tokens", InvalidGrammarError),
    (
        formatted(
            type="triggered_tags",
            triggers=["<"],
            tags=[{"begin": {"type": "token", "token": 1}, "content": ANY, "end": "x"}],
        ),
        "a token as begin",
        UnsupportedGrammarError,
    ),
    (
        formatted(type="tag", begin="<", content=ANY, end=["", "x"]),
        "several that are not empty.*#/format/end",
        InvalidGrammarError,
    ),
    (formatted(type="tag", begin="<", content=ANY, end=[]), "one end", InvalidGrammarError),
    (formatted(type="tag", begin=3, content=ANY, end=""), "begin must be a string, not 3", InvalidGrammarError),
    (formatted(type="tag", begin="\ud800", content=ANY, end=""), "surrogate.*#/format/begin", InvalidGrammarError),
    (formatted(type="choices", choices=3), "list of strings, not 3", InvalidGrammarError),
    (formatted(type="grammar", grammar="root ::= 'a'", start=3), "start must be a string, not 3", InvalidGrammarError),
    (formatted(type="grammar", grammar="root ::= ("), "#/format/grammar", InvalidGrammarError),
    (
        formatted(type="sequence", elements=[ANY, NUMBER]),
        "any_text before regex.*#/format/elements/0",
        UnsupportedGrammarError,
    ),
    (formatted(type="triggered_tags", triggers=[], tags=[]), "at least one tag", InvalidGrammarError),
    (formatted(type="triggered_tags", triggers=["<"], tags=[NUMBER]), "type 'tag'.*tags/0", InvalidGrammarError),
    (formatted(type="triggered_tags", triggers=["<"], tags=XY, excludes=["<"]), "can never occur", InvalidGrammarError),
    (
        formatted(type="triggered_tags", triggers=["<"], tags=XY, at_least_one=1),
        "true or false, not 1",
        InvalidGrammarError,
    ),
    (formatted(type="repeat", min=3, max=2, content=NUMBER), "not a range", InvalidGrammarError),
    (formatted(type="const_string", value="\ud800"), "surrogate", InvalidGrammarError),
]


@pytest.mark.parametrize(("spec", "message", "kind"), BAD, ids=lambda value: str(value)[:60])
def test_errors_name_value_and_place(spec, message, kind):
    with pytest.raises(kind, match=message):
        compile_structural(spec, VOCABULARY)


def nested(depth):
    spec = {"type": "const_string", "value": "a"}
    for _ in range(depth):
        spec = {"type": "optional", "content": spec}
    return spec


def test_deep_nesting_is_a_limit():
    assert accepts(compile_structural(nested(50), VOCABULARY), "a")
    for spec in (nested(600), "[" * 100_000):
        with pytest.raises(GrammarLimitError, match="too deeply"):
            compile_structural(spec, VOCABULARY)


def test_parts_that_may_be_empty_repeat():
    free = {"type": "triggered_tags", "triggers": ["<"], "tags": XY}
    for spec in ({"type": "star", "content": free}, {"type": "repeat", "min": 5, "max": 9, "content": free}):
        grammar = compile_structural(spec, VOCABULARY)
        assert accepts(grammar, "") and accepts(grammar, "a<y>!b<x>1</x>") and not accepts(grammar, "a<z")


def test_schema_options_reach_the_schemas():
    spec = formatted(type="json_schema", json_schema={"type": "array"})
    assert accepts(compile_structural(spec, VOCABULARY), "[1, 2]")
    assert not accepts(compile_structural(spec, VOCABULARY, whitespace="compact"), "[1, 2]")


def test_a_class_with_a_schema_may_stand_for_it():
    class Weather:
        @staticmethod
        def model_json_schema():
            return WEATHER

    spec = formatted(type="json_schema", json_schema=Weather)
    assert accepts(compile_structural(spec, VOCABULARY), '{"city": ""}')
    assert compile_structural(spec, VOCABULARY) is not compile_json_schema(WEATHER, VOCABULARY)


def test_keywords_that_are_ignored_are_named():
    schema = {"type": "string", "maxLength": 3}
    grammar = compile_structural({"type": "json_schema", "json_schema": schema}, VOCABULARY, weaken=["maxLength"])
    assert grammar.weakened == ("#/json_schema/maxLength",) and accepts(grammar, '"abcdef"')
    assert compile_json_schema(schema, VOCABULARY, weaken=["maxLength"]).weakened == ("#/maxLength",)
    assert compile_json_schema(schema, VOCABULARY).weakened == ()


@pytest.mark.parametrize("name", ["min", "max", "max_tokens"])
def test_counts_that_do_not_fit_are_named(name):
    def spec(count):
        if name == "max_tokens":
            return {"type": "any_tokens", "max_tokens": count}
        return {"type": "repeat", "content": {"type": "const_string", "value": "a"}, "min": 0, "max": -1, name: count}

    assert compile_structural(spec(2**31 - 1), VOCABULARY).matcher().accept(97)
    for count in (2**31, 10**30):
        with pytest.raises(UnsupportedGrammarError, match=f"a count above 2147483647 is not supported .at #/{name}"):
            compile_structural(spec(count), VOCABULARY)
