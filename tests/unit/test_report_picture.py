"""The still picture of a run: what it draws against the run itself, and drawings that any text leaves whole."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lang_rules import RuleBackend

import sgl
from sgl.lang.errors import BadValueError
from sgl.lang.graph.render.node_labels import printable
from sgl.lang.report.run_svg import FILLS, HEAD, NAMES, ROW, WIDTH, TimeScale, _cut, _width

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def backend():
    made = RuleBackend()
    yield made
    made.gate.set()
    made.worker.shutdown()


@sgl.function
def plan(s, topic):
    s += sgl.user("Plan " + topic)
    forks = s.fork(2)
    for fork, tip in zip(forks, ("short", "long"), strict=True):
        fork += sgl.assistant("A " + tip + " one: " + sgl.gen("idea", max_tokens=9))
    forks.join()
    s += sgl.assistant(sgl.select("best", ["first", "second"]) + sgl.gen("why"))


def read(picture):
    return ET.fromstring(picture.svg)


def bars_of(root):
    """(title, rect) of each operation, in the order of the lanes."""
    return [(group.find(f"{SVG}title").text, group.find(f"{SVG}rect")) for group in root.iter(f"{SVG}g")]


def texts_of(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def lane_of(rect):
    return int((float(rect.get("y")) - HEAD) // ROW)


def test_each_operation_is_a_bar_in_the_lane_of_its_branch(backend):
    root = read(plan.run("a day", backend=backend).picture())
    bars = bars_of(root)
    names = [(title.split(":")[0], lane_of(rect), rect.get("fill")) for title, rect in bars]
    assert names == [
        ("select best", 0, FILLS["select"]),
        ("gen why", 0, FILLS["gen"]),
        ("gen idea", 1, FILLS["gen"]),
        ("gen idea", 2, FILLS["gen"]),
    ]
    assert [text for text in texts_of(root) if text in ("0", "0.1", "0.2")][-3:] == ["0", "0.1", "0.2"]


def test_bars_stand_where_the_report_says_they_ran(backend):
    state = plan.run("a day", backend=backend)
    run = state.report().data["runs"][0]
    pieces = [piece for branch in run["branches"] for piece in branch["pieces"] if "kind" in piece]
    scale = TimeScale(run["end"], 0)
    for piece, (_, rect) in zip(pieces, bars_of(read(state.picture())), strict=True):
        assert float(rect.get("x")) == pytest.approx(scale.at(piece["ready"]), abs=0.06)
        right = float(rect.get("x")) + float(rect.get("width"))
        assert right == pytest.approx(scale.at(piece["finished"]), abs=2.1)  # at least 2 pixels wide, 1 between two


def test_forks_go_down_and_joins_come_back_dashed(backend):
    def uprights(root):
        paths = [
            (path.get("d")[1:].replace("L", " ").split(), path.get("stroke-dasharray"))
            for path in root.iter(f"{SVG}path")
        ]
        return [(float(d[1]), float(d[3]), dash) for d, dash in paths if d[0] == d[2] and float(d[1]) >= HEAD]

    middle = [HEAD + (lane + 0.5) * ROW for lane in range(3)]
    root = read(plan.run("a day", backend=backend).picture())
    assert sorted(uprights(root), key=str) == sorted(
        [(middle[0], middle[lane], dash) for lane in (1, 2) for dash in (None, "3 2")], key=str
    )

    @sgl.function
    def never_joined(s):
        s.fork(2)[1].__iadd__(sgl.gen("x"))

    root = read(never_joined.run(backend=backend).picture())
    assert [dash for _, _, dash in uprights(root)] == [None, None]


def test_the_last_line_has_the_figures_of_the_run(backend):
    state = plan.run("a day", backend=backend)
    used = state.usage()
    line = texts_of(read(state.picture()))[-1]
    assert "3 branches" in line and f"{used.operations} operations" in line
    assert f"{used.prompt_tokens:,} prompt" in line and f"{used.generated_tokens:,} generated" in line
    assert "cached" not in line and "computed" not in line, "this backend does not tell what it had computed before"


def test_a_failure_is_red_and_named_and_what_it_took_along_is_dashed():
    def failing(prompt, request):
        if prompt.endswith("!"):
            raise OverflowError("no exclamations")
        return "ok"

    @sgl.function
    def program(s):
        s += "fine " + sgl.gen("a") + "!" + sgl.gen("b") + sgl.gen("c")

    backend = RuleBackend(failing)
    root = read(program.run(backend=backend).picture())
    backend.worker.shutdown()
    looks = [(rect.get("fill"), rect.get("stroke-dasharray")) for _, rect in bars_of(root)]
    assert looks == [(FILLS["gen"], None), (FILLS["error"], None), ("none", "3 2")]
    assert "OverflowError" in bars_of(root)[1][0] and texts_of(root)[-1].startswith("failed: ProgramError")


def test_what_has_not_begun_stands_behind_the_end(backend):
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += "x " + sgl.gen("a") + sgl.gen("b") + sgl.gen("c")

    state = program.run(backend=backend)
    root = read(state.picture(wait=False))
    at = [float(rect.get("x")) for _, rect in bars_of(root)]
    first = bars_of(root)[0][1]
    assert at[0] + float(first.get("width")) < at[1] < at[2] and at[2] + 40 < WIDTH
    assert "not begun" in bars_of(root)[1][0] and "so far" in texts_of(root)[-1]
    backend.gate.set()
    assert "not begun" not in state.picture().svg


def test_many_branches_are_cut_and_told(backend):
    @sgl.function
    def program(s):
        forks = s.fork(9)
        forks += sgl.gen("x")

    state = program.run(backend=backend)
    assert len(bars_of(read(state.picture()))) == 9
    root = read(state.picture(lanes=4))
    assert len(bars_of(root)) == 3 and "and 6 more branches: picture(lanes=10) shows all" in texts_of(root)
    for wrong in (0, True, 2.5):
        with pytest.raises(BadValueError, match="lanes is"):
            state.picture(lanes=wrong)


def test_it_is_saved_and_shown_by_notebooks(backend, tmp_path):
    state = plan.run("a day", backend=backend)
    picture = state.picture(tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text(encoding="utf-8") == picture._repr_svg_() == picture.svg
    assert "<style" not in picture.svg and " id=" not in picture.svg and len(picture.svg) < 8_000


def test_async_programs(backend):
    kept = []

    @sgl.function
    async def program(s):
        s += "x " + sgl.gen("a")
        kept.append(await s.picture())

    asyncio.run(program.arun(backend=backend))
    assert len(bars_of(read(kept[0]))) == 1


def test_a_run_without_operations_is_a_picture(backend):
    @sgl.function
    def program(s):
        s += "text only"

    assert bars_of(read(program.run(backend=backend).picture())) == []


any_text = st.one_of(
    st.sampled_from(["</svg><script>alert(1)</script>", "\x00\ufffe", "\ud800", "]]>&amp;", "\u202egnp", "漢字" * 90]),
    st.text(st.characters(), max_size=60),
)


@settings(max_examples=60, deadline=None)
@given(any_text, any_text)
def test_any_text_leaves_the_drawing_whole_and_inside_its_frame(literal, answer):
    backend = RuleBackend(lambda prompt, request: answer)

    @sgl.function
    def program(s):
        fork = s.fork(1)[0]
        fork += literal
        fork += sgl.gen(answer[:5] or "x") + sgl.gen("y")

    svg = program.run(backend=backend, stop=["\u0001never"]).picture().svg
    backend.worker.shutdown()
    root = ET.fromstring(svg.encode("utf-8"))
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {"svg", "g", "title", "rect", "path", "text"}
    assert len(bars_of(root)) == 2


@given(st.floats(1e-7, 1e7), st.integers(0, 300))
def test_ticks_are_round_and_readable(end, room):
    scale = TimeScale(end, room)
    ticks = scale.ticks()
    assert ticks[0] == 0 and ticks[-1] <= scale.end and len(ticks) <= 8
    places = [scale.at(tick) for tick in ticks]
    assert all(b - a >= 79 for a, b in pairwise(places)) and places[0] == NAMES


@pytest.mark.parametrize("text", ["", "abc", "漢字かな", "a\nb", "\x00\x01", "🙂" * 90, "e\u0301" * 40])
def test_texts_are_cut_where_the_width_ends(text):
    whole = printable(text.replace("\n", " "))
    for width in (0, 7, 20, 77, 5000):
        cut = _cut(text, width)
        longest = next((i for i in range(len(whole), 0, -1) if _width(whole[:i] + "…") <= width), 0)
        assert cut == (whole if _width(whole) <= width else f"{whole[:longest]}…" if longest > 1 else "")
