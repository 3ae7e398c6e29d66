"""Chat templates that would run for ever or take all memory are stopped; all others write what plain Jinja writes."""

from __future__ import annotations

import random
import resource
import time

import pytest
from alone import alone
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sgl.lang.chat.tokenizer_chat_template import JinjaChatTemplate
from sgl.lang.errors import ProgramError
from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates import template_render_budget
from sgl.runtime.text.chat_templates.family_chat_formats import CHAT_FORMATS
from sgl.runtime.text.chat_templates.hf_chat_template import BadTemplate, ChatTemplate, TemplateTooCostly

MESSAGES = [{"role": "user", "content": "hi"}]
SECONDS, MEGABYTES = 2.0, 100
REPEAT = "{% set n = namespace(x=START) %}{% for i in range(99999) %}{% set n.x = NEXT %}{% endfor %}{{ n.x }}"


def grown(start: str, following: str) -> str:
    return REPEAT.replace("START", start).replace("NEXT", following)


LARGE = {
    "a text times a number": "{{ 'a' * 1000000000 }}",
    "a text that is set": "{% set x = 'a' * 10**9 %}",
    "a number times a text": "{{ 1000000000 * 'a' }}",
    "safe text": "{{ ('a'|safe) * 1000000000 }}",
    "a list times a number": "{% set x = [0] * 1000000000 %}",
    "a power": "{{ 7 ** 1000000000 }}",
    "a power below one": "{{ 7 ** -(1000000000) // 1 ** 7 ** 99999 }}{{ 3 ** 99999 }}",
    "squares": grown("10**100", "n.x * n.x"),
    "texts that double": grown("'aa'", "n.x ~ n.x"),
    "sums that double": grown("'aa'", "n.x + n.x"),
    "lists that double": grown("[1]", "n.x + n.x"),
    "lists with themselves twice": grown("[1]", "[n.x, n.x]"),
    "tuples with themselves twice": grown("(1,)", "(n.x, n.x)"),
    "objects with themselves twice": grown("{}", "{'a': n.x, 'b': n.x}"),
    "arguments with themselves twice": "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ "
    "varargs }}{% endif %}{% endmacro %}{{ m(60, 1) }}",
    "lists in lists": grown("[1]", "[n.x]"),
    "lists of lists": grown("[]", "n.x + [range(999)|list]"),
    "lists of texts": grown("[]", "n.x + ['a' * (100000 + i)]"),
    "texts that are kept one by one": "{% for i in range(99999) %}{% set x = 'a' * (100000 + i) %}{% endfor %}",
    "what a loop writes": "{% set x = 'a' * 100000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "what a block keeps": "{% set x %}{% for i in range(99999) %}" + "a" * 1000 + "{% endfor %}{% endset %}",
    "what a call writes": "{% macro m() %}{% for i in range(9999) %}{{ caller() }}{% endfor %}{% endmacro %}{% call "
    "m() %}" + "a" * 1000 + "{% endcall %}",
    "many texts at once": "{% set a = 'a' * 1000000 %}{{ a" + " ~ a" * 2000 + " }}",
    "center": "{{ 'a'|center(1000000000) }}",
    "indent": "{{ 'a\nb'|indent(1000000000) }}",
    "indent by a text": "{% set x = 'a\n' * 1000 %}{{ x|indent('b' * 10000) }}",
    "a filter of a block": "{% filter indent(1000000000) %}a\nb{% endfilter %}",
    "replace": "{% set x = 'a' * 100000 %}{{ x|replace('a', x) }}",
    "replace by method": "{% set x = 'a' * 100000 %}{{ x.replace('', x) }}",
    "a mapped filter": "{% set x = 'a' * 100000 %}{{ [x]|map('replace', 'a', x)|list }}",
    "join": "{% set x = 'a' * 100000 %}{{ range(10000)|join(x) }}",
    "join what is mapped": "{% set x = 'a' * 100000 %}{{ range(10000)|map('string')|join(x) }}",
    "join by method": "{% set x = 'a' * 100000 %}{{ x.join(x) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "translate": "{{ ('a' * 10000).translate({97: 'a' * 10000}) }}",
    "to_bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "fromkeys": "{{ {}.fromkeys(range(99999), [1]) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format with a width inside": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent with a width beside": "{{ '%*d' % (1000000000, 1) }}",
    "percent by filter": "{{ '%.1000000000f'|format(1) }}",
    "percent many times": "{% set x = 'a' * 100000 %}{{ ('%(a)s' * 10000) % {'a': x} }}",
    "batch": "{{ [1]|batch(1000000000, 0)|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "round": "{{ 5|round(-1000000000) }}",
    "round up": "{{ 5|round(1000000000, 'ceil') }}",
    "tojson": "{{ [1]|tojson(indent=1000000000) }}",
    "tojson with long signs": "{{ range(10000)|list|tojson(separators=('a' * 100000, 'b')) }}",
    "split": "{% set x = 'a ' * 1000000 %}{{ x.split() }}",
    "strftime": "{{ strftime_now('%Y' * 100000) }}",
}
LONG = {
    "loops in loops": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "loops that skip all": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops that go on": "{% for a in range(99999) %}{% for b in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% "
    "endmacro %}{{ m(60) }}",
    "sorting": "{% for i in range(99999) %}{% set x = range(9999)|sort(reverse=true) %}{% endfor %}",
    "searching": "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "comparing": "{% set x = 'a' * 1000000 %}{% set y = x ~ '' %}{% for i in range(99999) %}{% if x == y %}{% endif "
    "%}{% endfor %}",
    "what is mapped": "{% for i in range(99999) %}{% set x = range(99999)|map('string')|max %}{% endfor %}",
    "recursive loops": "{% for a in range(99) recursive %}{% if loop.depth < 20 %}{{ loop(range(99)) }}{% endif "
    "%}{% endfor %}",
}
DEEP = {
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a block in itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "a loop in itself": "{% for a in [[1], [1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}",
    "filters in each other": "{% set n = namespace(x=range(9)) %}{% for i in range(2500) %}{% set n.x = "
    "n.x|map('string') %}{% endfor %}{{ n.x|list }}",
}
BAD = {
    "a long one": "a" * 200_000,
    "many words": "{{ a }}" * 10_000,
    "a long list": "{% set x = [" + "1," * 30_000 + "] %}",
    "a long number": "{{ " + "9" * 5000 + " }}",
    "brackets": "{{ " + "(" * 4000 + "1" + ")" * 4000 + " }}",
    "sums": "{{ 1" + "+1" * 4000 + " }}",
    "signs": "{{ " + "-" * 9000 + "1 }}",
    "loops": "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    "conditions": "{% if x %}" * 200 + "{% endif %}" * 200,
    "no end": "{% raw %}" + "{%  " * 10_000,
    "a filter for web pages": "{{ 'a'|wordwrap(1) }}",
}


def spent(source: str, kind: type[Exception]) -> str:
    """What the error says; bounded in time and memory."""
    started, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(kind) as caught:
        ChatTemplate(source, {}).render(MESSAGES, True)
    assert time.thread_time() - started < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    assert len(str(caught.value)) < 1000 and "chat_template" in str(caught.value)
    return str(caught.value)


@pytest.mark.whole
@alone
def test_what_would_be_large_is_not_made():
    for name, source in LARGE.items():
        assert "seconds" not in spent(source, TemplateTooCostly), name


@pytest.mark.whole
@alone
def test_what_would_take_long_is_stopped():
    template_render_budget.SECONDS = 0.1
    for name, source in LONG.items():
        assert "longer than 0.1 seconds" in spent(source, TemplateTooCostly), name


@pytest.mark.parametrize("name", DEEP)
def test_what_would_nest_too_deep_is_said(name):
    assert "nest too deep" in spent(DEEP[name], ConfigError)


@pytest.mark.whole
@alone
def test_what_would_take_long_to_compile_is_not_compiled():
    for source in BAD.values():
        spent(source, BadTemplate)


def test_the_language_does_not_try_a_template_that_was_stopped_again(monkeypatch):
    monkeypatch.setattr(template_render_budget, "SECONDS", 0.1)
    chat = ChatTemplate(LONG["loops in loops"], {})

    class Tokenizer:
        bos_id, asked = 0, 0

        def encode(self, text, special_prefix=False):
            return __import__("numpy").array([], int)

        def chat_messages(self, messages):
            return messages

        def render_chat(self, messages, add_generation_prompt=False):
            self.asked += 1
            return chat.render(messages, add_generation_prompt)

    tokenizer = Tokenizer()
    with pytest.raises(ProgramError, match=r"cannot be used.*longer than 0.1 seconds"):
        JinjaChatTemplate(tokenizer)
    assert tokenizer.asked == 1


# --- what templates may ---------------------------------------------------------------------------------------------


def plain(source: str, **values: object) -> str:
    """By Jinja's own sandbox, as Hugging Face sets it up."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = __import__("json").dumps
    return environment.from_string(source).render(values)


EXPRESSIONS = [
    "m",
    "m.role",
    "m['content']",
    "m.content | trim | upper",
    "m.content[:2] ~ '-' ~ loop.index",
    "[m.role, 1, m]",
    "{'a': m.content}",
    "(1, 2)",
    "m.content * 3",
    "3 * '-'",
    "1 + 2 * 3 - 4 / 2",
    "7 // 2 ** 2",
    "'%s and %d' % (m.role, 3)",
    "'{} {x}'.format(m.role, x=1)",
    "m.content.split('a')",
    "m.content.split() | join(', ')",
    "m.content | replace('a', 'bb')",
    "m.content.replace('', '.')",
    "tools | length",
    "tools | map(attribute='name') | list",
    "tools | selectattr('name', 'eq', 'f') | list",
    "tools | tojson",
    "range(5) | list",
    "range(3) | join('x')",
    "m.items() | list",
    "m | dictsort",
    "[3, 1, 2] | sort | last",
    "m.content | default('none')",
    "missing | default(20240101)",
    "missing is defined",
    "m.role in ['user', 'system']",
    "m.content | indent(4)",
    "[1] + [2, [3]]",
    "m.content | center(12)",
    "loop.last",
    "loop.length",
    "loop.revindex",
    "loop.previtem.role",
    "[1, 2, 3, 4] | batch(2) | list",
    "'a' if loop.first else 'b'",
    "m.content.startswith('h') and not loop.first",
    "m.get('name', 'x')",
    "m.content | first",
    "m.content | list",
    "3.14159 | round(2)",
    "-x",
    "not x",
    "[[1, 2], [3]] | sum(start=[])",
    "m.keys() | list",
    "m.content | e",
    "tools | groupby('name') | list",
    "m.content | length > 3",
    "'a' < 'b' <= 'c'",
    "m.content | string | wordcount",
    "[m, m] | unique | list | length",
]
FRAMES = [
    "{% for m in messages %}[{{ E }}]{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{% set v = E %}{{ v }}{% else %}none{% endfor %}",
    "{% macro show(m, loop) %}<{{ E }}>{{ varargs }}{{ kwargs }}{% endmacro %}{% for m in messages %}{{ show(m, "
    "loop, 1) }}{% endfor %}",
    "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ (E) %}{% endfor %}{{ ns.s }}",
    "{% for m in messages recursive %}{{ E }}{% if loop.depth < 2 %}{{ loop(messages[:1]) }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{% set b %}{{ E }}{% endset %}{{ b | "
    "upper }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% filter upper %}{{ E }}{% endfilter %}{% endfor %}",
]


@pytest.mark.parametrize("seed", range(60))
def test_ordinary_templates_write_what_plain_jinja_writes(seed):
    chance = random.Random(seed)
    texts = ["", "hello a", "  spaced ", "line\nline", "日本 a", "<|x|>", "a" * 50]
    messages = [
        {"role": chance.choice(["system", "user", "assistant"]), "content": chance.choice(texts)}
        for _ in range(chance.randint(0, 4))
    ]
    values = {"tools": [{"name": "f", "x": 1}, {"name": "g"}], "x": 5}
    source = "".join(chance.choice(FRAMES).replace("E", chance.choice(EXPRESSIONS)) for _ in range(4))
    assert outcome(lambda: ChatTemplate(source, {}).render(messages, False, **values)) == outcome(
        lambda: plain(source, messages=messages, add_generation_prompt=False, **values)
    ), source


def outcome(call):
    try:
        return call()
    except Exception:
        return "refused"


@pytest.mark.parametrize("known", CHAT_FORMATS, ids=lambda known: known.name)
def test_known_formats_render_long_conversations(known):
    turns = [{"role": role, "content": "word " * 200} for _ in range(500) for role in ("user", "assistant")]
    assert len(ChatTemplate(known.source, {"bos_token": "<s>", "eos_token": "</s>"}).render(turns, False)) > 10**6


def test_a_long_message_may_be_cut_and_put_together():
    source = (
        "{% for m in messages %}{{ m.content.split('\n')|join('\n') ~ (m.content|replace('e', 'ee')) }}{% endfor %}"
    )
    content = "some text here\n" * 50_000
    assert len(ChatTemplate(source, {}).render([{"role": "user", "content": content}], False)) > 2 * len(content)


def test_nothing_is_computed_while_a_template_is_compiled():
    """Every filter and operator that jinja folds where it can is one that it cannot fold here."""
    sandbox = ChatTemplate("", {})._sandbox
    for source in ("'a' * 3", "'a'|center(3)", "2 ** 3", "'a'|upper", "[1]|sum", "'%d' % 3"):
        (output,) = sandbox.parse("{{ " + source + " }}").body
        with pytest.raises(nodes.Impossible):
            output.nodes[0].as_const()
