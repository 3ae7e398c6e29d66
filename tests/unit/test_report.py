"""The report of a run: its data against the run itself, and a page that no text can break out of."""

from __future__ import annotations

import asyncio
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lang_rules import RuleBackend, RuleStream

import sgl
from sgl.lang.backend import Generated, Media
from sgl.lang.errors import BadValueError
from sgl.lang.nodes.ir import SglImage
from sgl.lang.report import RunReport, brief, report
from sgl.lang.report.report_node import media_data
from sgl.lang.report.report_page import data_text
from sgl.lang.report.report_tokens import PageVocabulary, align, token_data
from sgl.lang.report.value_text import seen

PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\r"
    b"IDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82"
)


@pytest.fixture
def backend():
    made = RuleBackend()
    yield made
    made.gate.set()
    made.worker.shutdown()


class Page(HTMLParser):
    """What a browser finds in a page: its tags, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text):
        if self.tags and self.tags[-1] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += text


def data_of(made: RunReport) -> dict:
    """The data as a browser reads it back from the page."""
    return json.loads(Page(made.html).scripts[0])


@sgl.function
def plan(s, topic):
    s += sgl.user("Plan " + topic)
    forks = s.fork(2)
    for fork, tip in zip(forks, ("short", "long"), strict=True):
        fork += sgl.assistant("A " + tip + " one: " + sgl.gen("idea", max_tokens=9, temperature=0.5))
    forks.join()
    s += sgl.assistant(sgl.select("best", ["first", "second"]) + sgl.gen("why", n=3))
    return {"chosen": s["best"]}


def ops_of(run):
    return [piece for branch in run["branches"] for piece in branch["pieces"] if "kind" in piece]


def text_of(run, number):
    """The text of a branch, put together as the page does it."""
    return "".join(piece["text"] for piece in pieces_of(run, number))


def pieces_of(run, number):
    branch = run["branches"][number]
    shared = [] if branch["parent"] < 0 else pieces_of(run, branch["parent"])[: branch["start"]]
    return [*shared, *branch["pieces"]]


# --- the data is the run


def test_the_branches_and_their_texts(backend):
    states = {}

    @sgl.function
    def program(s):
        s += "begin "
        forks = s.fork(2)
        forks += [sgl.gen("a") + "!", sgl.gen("b") + "?"]
        states["grand"] = forks[1].fork(1)[0]
        states["grand"] += " deeper " + sgl.gen("c")
        forks.join()
        s += "end"
        states.update(root=s, first=forks[0], second=forks[1])

    state = program.run(backend=backend)
    run = data_of(state.report())["runs"][0]
    assert [(b["label"], b["parent"], b["start"]) for b in run["branches"]] == [
        ("0", -1, 0),
        ("0.1", 0, 1),
        ("0.2", 0, 1),
        ("0.2.1", 2, 3),
    ]
    texts = [text_of(run, number) for number in range(4)]
    assert texts == [state.text(), states["first"].text(), states["second"].text(), states["grand"].text()]
    joined = [b["closed"] for b in run["branches"]]
    assert joined[3] is None and 0 < joined[1] <= joined[2] <= joined[0]


def test_counts_add_up_with_the_usage(backend):
    state = plan.run("a day", backend=backend)
    run = data_of(state.report())["runs"][0]
    usage = state.usage()
    assert run["usage"]["operations"] == usage.operations == 6  # two ideas, a select, three samples
    assert run["usage"]["prompt"] == usage.prompt_tokens == sum(op["counts"].get("prompt", 0) for op in ops_of(run))
    assert (
        run["usage"]["computed"] == usage.computed_tokens == sum(op["counts"].get("computed", 0) for op in ops_of(run))
    )
    assert run["usage"]["seconds"] == pytest.approx(usage.seconds, abs=1e-5)


def test_what_a_backend_does_not_tell_is_left_out(backend):
    run = data_of(plan.run("a day", backend=backend).report())["runs"][0]
    idea = next(op for op in ops_of(run) if op["name"] == "idea")
    assert "cached" not in idea["counts"] and "forced" not in idea["counts"] and "tokens" not in idea["samples"][0]
    best = next(op for op in ops_of(run) if op["name"] == "best")
    assert best["counts"] == {} and [choice["mean"] for choice in best["choices"]] == [-5.0, -6.0]
    assert all("prob" not in choice for choice in best["choices"])


def test_nodes_tell_their_line_options_samples_and_times(backend):
    state = plan.run("a day", backend=backend)
    data = data_of(state.report())
    run = data["runs"][0]
    idea, why = (next(op for op in ops_of(run) if op["name"] == name) for name in ("idea", "why"))
    file, line = data["files"][idea["at"][0]], str(idea["at"][1])
    assert Path(file["path"]) == Path(__file__) and 'gen("idea"' in file["lines"][line]
    assert idea["options"] == {"max_tokens": "9", "temperature": "0.5"} and why["options"] == {"n": "3"}
    assert [sample["text"] for sample in why["samples"]] == state["why"] and why["text"] == state["why"][0]
    assert all(0 <= op["submitted"] <= op["ready"] <= op["finished"] <= run["end"] for op in ops_of(run))
    best = next(op for op in ops_of(run) if op["name"] == "best")
    assert why["ready"] == pytest.approx(max(why["submitted"], best["finished"]), abs=2e-6)


def test_turns_variables_arguments_and_what_was_returned(backend):
    state = plan.run(topic="a day", backend=backend, temperature=0)
    run = data_of(state.report())["runs"][0]
    assert [turn[0] for turn in run["branches"][0]["turns"]] == ["user", "assistant"]
    for number, message in enumerate(state.messages()):
        _, start, end = run["branches"][0]["turns"][number]
        assert "".join(p["text"] for p in pieces_of(run, 0)[start:end]).strip() == message["content"].strip()
    rows = {row.get("name"): row for row in run["variables"]}
    branch, index = rows["best"]["node"]
    assert run["branches"][branch]["pieces"][index]["text"] == state["best"]
    assert json.loads(rows["idea"]["text"]) == state["idea"] and json.loads(rows[None]["text"]) == {
        "chosen": state["best"]
    }
    assert run["arguments"] == {"topic": "a day"} and run["options"] == {"temperature": "0.0"}


def test_the_open_turn_of_an_unfinished_state_is_known(backend):
    @sgl.function
    def program(s):
        s += sgl.user("hello")
        with s.assistant():
            s += sgl.gen("x")
            s["page"] = s.report().data

    turns = program.run(backend=backend)["page"]["runs"][0]["branches"][0]["turns"]
    assert turns == [["user", 1, 2], ["assistant", 4, None]]


def test_a_called_program_and_a_scope_are_parts_of_the_run(backend):
    inner = sgl.function(lambda s, x: s.__iadd__("inner " + sgl.gen("y")) and None)

    @sgl.function
    def program(s):
        with s.var_scope("all"):
            s.call(inner, "x")
        s += "."

    run = data_of(program.run(backend=backend).report())["runs"][0]
    assert [op["name"] for op in ops_of(run)] == ["y"]
    assert run["variables"] == [{"name": "all", "state": "done", "text": "inner <1>", "type": "str"}]


def test_nested_runs_are_counted_apart(backend):
    @sgl.function
    def outer(s):
        plan.run("inside", backend=backend).sync()
        s += sgl.gen("x")

    run = data_of(outer.run(backend=backend).report())["runs"][0]
    assert run["usage"]["operations"] == 1 and run["with_nested"]["operations"] == 7


# --- runs that are not done, or went wrong


def failing(prompt, request):
    if prompt.endswith("!"):
        raise OverflowError("no exclamations")
    return "ok"


def test_a_failed_run_names_the_error_once():
    backend = RuleBackend(failing)

    @sgl.function
    def program(s):
        s += "fine " + sgl.gen("a") + "!" + sgl.gen("b") + sgl.gen("c")
        s.fork(1)[0].__iadd__(sgl.gen("d"))

    run = data_of(program.run(backend=backend).report())["runs"][0]
    backend.worker.shutdown()
    assert [op["state"] for op in ops_of(run)] == ["done", "failed", "skipped", "skipped"]
    assert run["state"] == "failed" and run["error"]["causes"] == ["OverflowError: no exclamations"]
    assert run["error"]["at"] == ops_of(run)[1]["at"]
    variable = next(row for row in run["variables"] if row["name"] == "b")
    assert "text" not in variable


def test_a_running_one_shows_what_has_come(backend):
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += "x " + sgl.gen("a") + sgl.gen("b")

    state = program.run(backend=backend)
    run = data_of(state.report(wait=False))["runs"][0]
    assert run["state"] == "running" and run["end"] is None and run["now"] > 0
    assert [(op["state"], op["finished"], op["ready"] is None) for op in ops_of(run)] == [
        ("running", None, False),
        ("running", None, True),
    ]
    backend.gate.set()
    run = data_of(state.report())["runs"][0]
    assert run["state"] == "done" and run["end"] > 0


def test_a_streaming_one_tells_when_the_first_text_came(backend):
    @sgl.function
    def program(s):
        s += "one two " + sgl.gen("a")

    state = program.run(backend=backend, stream=True)
    op = ops_of(data_of(state.report())["runs"][0])[0]
    assert op["submitted"] <= op["first"] <= op["finished"] and op["text"] == "<2>"
    plain = program.run(backend=backend)
    assert "first" not in ops_of(data_of(plain.report())["runs"][0])[0]


def test_a_cancelled_one(backend):
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += sgl.gen("a") + sgl.gen("b")

    state = program.run(backend=backend)
    state.cancel("enough")
    run = data_of(state.report())["runs"][0]
    backend.gate.set()
    assert run["state"] == "stopped" and run["error"]["message"] == "enough"
    assert [op["state"] for op in ops_of(run)] == ["stopped", "skipped"]


def test_a_body_that_raised_has_a_report(backend):
    @sgl.function
    def program(s):
        s += "text" + sgl.gen("a")
        seen_states.append(s)
        raise KeyError("mine")

    seen_states: list = []
    with pytest.raises(KeyError):
        program.run(backend=backend)
    run = data_of(seen_states[0].report())["runs"][0]
    assert run["state"] == "failed" and run["error"]["type"] == "KeyError" and ops_of(run)[0]["state"] == "done"


def test_async_programs(backend):
    pages = []

    @sgl.function
    async def program(s):
        s += "x " + sgl.gen("a")
        pages.append(await s.report())

    state = asyncio.run(program.arun(backend=backend))
    assert ops_of(pages[0].data["runs"][0])[0]["state"] == "done"
    assert ops_of(state.report().data["runs"][0])[0]["text"] == state["a"]


def test_thoughts_are_kept_apart(backend):
    backend.rule = lambda prompt, request: "<think>hm</think>yes"

    @sgl.function
    def program(s):
        s += (
            sgl.separate_reasoning(sgl.gen("a"), model_type="qwen3")
            if hasattr(sgl, "separate_reasoning")
            else thinking()
        )

    def thinking():
        from sgl.lang.nodes.ir import SglSeparateReasoning

        return SglSeparateReasoning("qwen3", sgl.gen("a"))

    run = data_of(program.run(backend=backend).report())["runs"][0]
    sample = ops_of(run)[0]["samples"][0]
    assert (sample["text"], sample["thought"], sample["spans"]) == ("yes", "hm", None)
    assert {row["name"]: row.get("text") for row in run["variables"]} == {"a": None, "a_reasoning_content": "hm"}


# --- batches and files


def test_a_batch_with_failures(backend, tmp_path):
    backend.rule = lambda prompt, request: failing(prompt, request) if "Plan bad" in prompt else "<ok>"
    states = plan.run_batch([{"topic": "good"}, {"topic": "bad!"}, {"topic": "fine"}], backend=backend, num_threads=1)
    path = tmp_path / "batch.html"
    data = data_of(report([*states, ValueError("never ran")], path, title="three and one"))
    assert path.read_text(encoding="utf-8").count("<html") == 1 and data["title"] == "three and one"
    assert [run["state"] for run in data["runs"]] == ["done", "done", "done", "failed"]
    assert data["runs"][3]["branches"] == [] and data["runs"][3]["error"] == {
        "type": "ValueError",
        "message": "never ran",
    }
    starts = [run["start"] for run in data["runs"][:3]]
    assert starts[0] == 0 and starts == sorted(starts)


def test_what_is_no_state_is_named():
    with pytest.raises(BadValueError, match="not of 3"):
        report([3])


def test_an_empty_batch_is_a_page():
    assert data_of(report([]))["runs"] == []


def test_a_large_batch_is_small_and_quick(backend):
    @sgl.function
    def program(s, topic):
        for _ in range(20):
            s += "Some text about " + topic + ": " + sgl.gen("x") + sgl.gen("y")

    states = [program.run(str(i), backend=backend) for i in range(50)]
    states[-1].sync()
    began = time.thread_time()
    page = report(states).html
    took = time.thread_time() - began
    assert len(page) < 100_000 + 50 * 40 * 400 and took < 3, (len(page), took)


# --- no text breaks out of the page

NASTY = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "\x00\ufffe",
    "\ud800",
    "a\r\nb\u2028c",
    "{{data}}",
    "]]>&amp;\\u003c",
    "\u202egnp",
]
any_text = st.one_of(st.sampled_from(NASTY), st.text(st.characters(), max_size=40))


@settings(max_examples=80, deadline=None)
@given(any_text, any_text)
def test_any_text_comes_back_and_adds_no_tag(literal, answer):
    backend = RuleBackend(lambda prompt, request: answer)

    @sgl.function
    def program(s, given_text):
        s += literal
        s += sgl.gen("x")
        s[answer] = given_text

    state = program.run(literal, backend=backend, stop=["\u0001never"])
    made = state.report(title=literal)
    backend.worker.shutdown()
    page = Page(made.html)
    assert page.tags == Page(RunReport({"title": "", "runs": []}).html).tags
    data = json.loads(page.scripts[0])
    assert data == made.data and data["runs"][0]["branches"][0]["pieces"][0]["text"] == literal
    assert made.html.encode("utf-8") and re.sub(r"[\w+=]", "", Page(made._repr_html_()).tags[0]) == ""
    assert set(Page(brief(state)).tags) <= {"div", "span", "small", "code", "b"}


@given(
    st.recursive(
        any_text | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    )
)
def test_data_text_is_json_without_tags(value):
    text = data_text({"value": value})
    assert json.loads(text) == {"value": value} and not set("<>&\x00") & set(text)
    assert text.encode("utf-8").decode() == text


def test_the_page_names_its_own_scripts_and_loads_nothing():
    page = report([]).html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


# --- tokens


@given(st.text(max_size=30), st.data())
def test_aligned_tokens_make_the_text(text, data):
    """Any way of cutting the UTF-8 of a text into tokens gives back the text, and has all tokens."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1))))) if len(raw) > 1 else []
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)] + [b"<|end|>"] * data.draw(
        st.integers(0, 1)
    )
    tokens = [piece.decode(errors="replace") for piece in pieces]
    spans = align(text, tokens)
    if spans is not None:
        assert "".join(part for part, _ in spans) == text and sum(size for _, size in spans) == len(tokens)
    whole = all(piece.decode(errors="ignore").encode() == piece for piece in pieces)
    assert spans is not None or not whole


def test_tokens_of_one_character_stand_together():
    snowman = "\u2603".encode()
    tokens = ["a", *(bytes([byte]).decode(errors="replace") for byte in snowman), "b", "<|end|>"]
    assert align("a\u2603b", tokens) == [["a", 1], ["\u2603", 3], ["b", 1], ["", 1]]
    assert align("a\u2603b", ["a", "<|tool|>", "\u2603", "b"]) == [["a", 1], ["", 1], ["\u2603", 1], ["b", 1]]
    assert align("something else", ["a", "b"]) is None


def test_log_probabilities_and_alternatives_are_written_once_each():
    meta = {
        "output_token_logprobs": [[-0.25, 7, "he"], [float("-inf"), 8, None], [None, 7, "he"]],
        "output_top_logprobs": [[[-0.25, 7, "he"], [-3.0, 9, "she"]], [], []],
    }

    class Texts(RuleBackend):
        def token_texts(self, ids):
            return [f"t{token}" for token in ids]

    words, backend = PageVocabulary(), Texts()
    found = token_data(Generated("het8he", meta, [7, 8, 7]), backend, words)
    backend.worker.shutdown()
    assert found == {"tokens": [0, 1, 0], "logprobs": [-0.25, -1e6, None], "top": [[[0, -0.25], [2, -3.0]], [], []]}
    assert words.data() == [[7, "he"], [8, "t8"], [9, "she"]]


# --- pictures and words


def test_small_pictures_are_shown_and_nothing_is_fetched(tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    assert media_data(Media("image", str(tmp_path / "a.png")))["url"].startswith("data:image/png;base64,")
    assert media_data(Media("image", PIXEL))["source"] == f"{len(PIXEL)} bytes"
    for source in ("https://example.com/a.png", "missing.png", b"<svg onload=alert(1)>", 5):
        found = media_data(Media("image", source))
        assert not found.get("url", "data:image/png").startswith(("http", "data:image/svg"))
    assert "url" not in media_data(Media("video", "film.mp4", 4))


def test_large_pictures_become_thumbnails():
    Image = pytest.importorskip("PIL.Image")
    import random

    noise = Image.frombytes("RGB", (700, 500), random.Random(1).randbytes(700 * 500 * 3))
    found = media_data(Media("image", noise))
    assert found["url"].startswith("data:image/jpeg") and len(found["url"]) < 100_000
    assert found["source"].endswith("700 x 500 pixels")


def test_a_picture_in_a_prompt_is_a_piece_of_its_turn(tmp_path):
    class Seeing(RuleBackend):
        def open(self):
            return SeeingStream(self)

    class SeeingStream(RuleStream):
        def attach(self, media, token):
            self.append(token)

    @sgl.function
    def program(s):
        s += SglImage(PIXEL) + "What is it? " + sgl.gen("x")

    backend = Seeing()
    run = data_of(program.run(backend=backend).report())["runs"][0]
    backend.worker.shutdown()
    media = run["branches"][0]["pieces"][0]["media"]
    assert (
        media["kind"] == "image"
        and media["url"].startswith("data:image/png")
        and media["source"] == f"{len(PIXEL)} bytes"
    )


def test_hidden_characters_are_shown():
    assert seen("a\x00\x7f\n\u202eb") == "a\u2400\u2421\n[U+202E]b"


def test_a_state_in_a_notebook(backend):
    state = plan.run("<b>", backend=backend)
    shown = state._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown.replace('<b style="opacity: 0.7">', "")
    assert "6 operations" in shown and "USER" not in shown  # the template's marks are left out
    assert "srcdoc" in state.report()._repr_html_()
