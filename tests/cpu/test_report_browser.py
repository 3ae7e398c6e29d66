"""The page of a report in a real Chromium: what it draws, and that no text of a run can do anything in it."""

from __future__ import annotations

import copy

import pytest
from chromium import Browser, browser, find_chromium

import sgl
from sgl.lang.report import RunReport, report

NASTY = (
    'Hi </script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1"> \u202eabc 🎉 שלום \x00 '
    + "long" * 500
)
MANY = 40


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine() as made:
        yield made


@pytest.fixture(scope="module")
def chrome():
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here: install one (Debian: apt-get install chromium) or name it in SGL_CHROMIUM")
    with browser(program) as made:
        yield made


@pytest.fixture
def page(chrome) -> Browser:
    chrome.errors.clear()
    chrome.show()
    yield chrome
    assert chrome.errors == []
    assert [url for url in chrome.requests if not url.startswith(("file:", "data:"))] == []


@sgl.function
def advise(s, topic, limit=8):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(topic)
    forks = s.fork(3)
    for fork in forks:
        fork += sgl.assistant(sgl.gen("draft", max_tokens=limit, return_logprob=True, top_logprobs_num=3))
    forks.join()
    s += sgl.user("Which one?")
    s += sgl.assistant("The " + sgl.select("best", ["first", "second", "third"]) + " " + sgl.gen("why", max_tokens=6))
    if topic == "fail":
        s += sgl.gen(
            "cut", max_tokens=1, json_schema={"type": "object", "required": ["a"]}, error_on_truncation=True
        ) + sgl.gen("after")
    return s["best"] if topic != "fail" else None


@pytest.fixture(scope="module")
def state(engine):
    made = advise.run(NASTY, backend=engine, seed=1, ignore_eos=True)
    assert made.error() is None
    return made


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "run.html"
    state.report(path)
    return path


def test_lanes_bars_and_figures(page, saved, state):
    page.open(saved)
    assert page.run("document.querySelectorAll('.lane').length") == 4
    assert page.run("[...document.querySelectorAll('.bar')].map(b => b.textContent)") == [
        "best",
        "why",
        "draft",
        "draft",
        "draft",
    ]
    assert page.run("document.querySelectorAll('.forks path').length") == 6  # three forks, three joins
    values = page.run(
        "Object.fromEntries([...document.querySelectorAll('.tile')].map(t => [t.lastChild.textContent, "
        "t.firstChild.textContent]))"
    )
    usage = state.usage()
    assert values["operations"] == str(usage.operations) == "5" and values["errors"] == "none"
    assert values["generated"] == f"{usage.generated_tokens} tokens"
    assert (
        0 < usage.computing_seconds <= usage.seconds and 0 < usage.wall_seconds <= state.report().data["runs"][0]["end"]
    )
    assert {"wall clock", "wait per operation", "compute per operation"} < values.keys()
    bars = page.run(
        "[...document.querySelectorAll('.bar')].map(b => [b.offsetLeft, b.offsetWidth, b.parentNode.offsetWidth])"
    )
    assert all(left >= 0 and width >= 6 and left + width <= lane for left, width, lane in bars)


def test_no_text_does_anything(page, saved):
    page.open(saved)
    assert page.run("window.hacked") is None
    assert page.run("document.scripts.length") == 2 and page.run("document.images.length") == 0
    shown = page.run("document.getElementById('text').textContent")
    assert NASTY.replace("\x00", "\u2400").replace("\u202e", "[U+202E]") in shown
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_click_on_a_bar_shows_the_node(page, saved):
    page.open(saved)
    page.run("[...document.querySelectorAll('.bar')].at(-1).click()")
    assert page.run("document.querySelector('#details h2').textContent") == "draft"
    assert page.run("document.querySelector('.name[aria-pressed=true]').textContent").startswith("0.3")
    hash = page.run("location.hash")
    assert (
        hash.startswith("#0/3/")
        and page.run(f"document.querySelectorAll('.chosen-node[data-node=\"{hash}\"]').length") == 3
    )  # bar, text, label
    assert 'gen("draft"' in page.run("document.querySelector('.line.here').textContent")
    page.open(saved, hash)
    assert page.run("document.querySelector('#details h2').textContent") == "draft"


def test_tokens_are_the_text_and_tell_their_probability(page, saved, state):
    page.open(saved, "#0/1")
    tokens = page.run("[...document.querySelectorAll('.text .op .t:not(.end)')].map(t => [t.textContent, t.className])")
    assert "".join(text for text, _ in tokens) == state["draft"][0]
    assert all(kind.split()[1] in {f"p{n}" for n in range(6)} for _, kind in tokens)
    page.run("document.querySelector('.tokens').focus()")
    page.key("ArrowRight")
    tip = page.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
    assert "logprob" in tip and page.run("document.querySelectorAll('#tip .other').length") == 3


def test_choices_have_their_probabilities(page, saved, state):
    page.open(saved)
    page.run("document.querySelector('.bar.select').click()")
    rows = page.run(
        "[...document.querySelectorAll('.choices li')].map(r => "
        "[r.querySelector('.choice-text').firstChild.textContent, r.querySelector('.figure').textContent])"
    )
    chances = dict(zip(["first", "second", "third"], state.get_meta_info("best")["choice_probs"], strict=True))
    assert [text for text, _ in rows] == sorted(chances, key=lambda text: -chances[text])
    assert page.run("document.querySelector('.choices .chosen .choice-text').firstChild.textContent") == state["best"]


def test_keys_move_between_bars(page, saved):
    page.open(saved)
    page.run("document.querySelector('.bar').focus()")
    for key, expected in (("ArrowRight", "why"), ("ArrowDown", "draft"), ("ArrowUp", "best")):
        page.key(key)
        assert page.run("document.activeElement.textContent") == expected
    assert page.run("document.querySelectorAll('.bar[tabindex=\"0\"]').length") == 1


def test_zoom_and_the_variables(page, saved):
    page.open(saved)
    before = page.run("document.getElementById('track').offsetWidth")
    page.run("document.querySelector('[aria-label=\"zoom in\"]').click()")
    assert page.run("document.getElementById('track').offsetWidth") > 1.5 * before
    names = page.run("[...document.querySelectorAll('.values tbody th')].map(t => t.textContent)")
    assert set(names) == {"best", "why", "draft", "returned"}


def test_dark_and_narrow(page, saved):
    page.open(saved)
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.show(390, 800, dark=True)
    assert page.run("getComputedStyle(document.body).backgroundColor") != light
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_failed_run_opens_at_its_error(page, engine, tmp_path):
    state = advise.run("fail", backend=engine, seed=1, ignore_eos=True)
    state.report(tmp_path / "failed.html")
    page.open(tmp_path / "failed.html")
    assert page.run("document.querySelector('#details h2').textContent") == "cut"
    assert "TruncatedError" in page.run("document.querySelector('#details .error-box').textContent")
    assert page.run("document.querySelectorAll('.bar.failed').length") == 1
    assert page.run("document.querySelectorAll('.bar.skipped.queued').length") == 1


def test_a_running_one_shows_what_waits(page, engine, tmp_path):
    @sgl.function
    def long(s):
        s += "x" + sgl.gen("a", max_tokens=400, ignore_eos=True) + sgl.gen("b", max_tokens=4)

    state = long.run(backend=engine, stream=True)
    next(iter(state.text_iter("a")))
    state.report(tmp_path / "running.html", wait=False)
    state.cancel()
    page.open(tmp_path / "running.html")
    assert page.run("[...document.querySelectorAll('.bar')].map(b => b.className)") == [
        "bar gen running",
        "bar gen running queued chosen-node",
    ]
    assert page.run("document.querySelector('.summary .badge').textContent") == "running"


def test_a_batch_is_a_table_that_opens_each_run(page, engine, tmp_path):
    topics = [{"topic": f"topic {i}", "limit": 2 + i % 7} for i in range(MANY)]
    states = advise.run_batch(topics, backend=engine, seed=2, ignore_eos=True)
    report([*states, ValueError("broken item")], tmp_path / "batch.html")
    page.open(tmp_path / "batch.html")
    assert page.run("document.querySelectorAll('.runs tbody tr').length") == MANY + 1
    generated = [state.usage().generated_tokens for state in states]
    page.run("document.querySelector('[data-column=generated]').click()")
    assert page.run("[...document.querySelectorAll('.c-generated')].map(c => Number(c.textContent))") == sorted(
        [*generated, 0], reverse=True
    )
    page.run(
        "document.getElementById('search').value = 'topic 7'; document.getElementById('search').dispatchEvent(new "
        "Event('input'))"
    )
    page.wait("document.querySelectorAll('.runs tbody tr').length === 1")
    page.run("document.querySelector('#found button').click()")
    assert page.run("document.querySelector('nav h2').textContent") == "Run 7" and page.run("location.hash").startswith(
        "#7/0/"
    )
    page.run("history.back()")
    page.wait("document.querySelector('.runs') !== null")
    page.open(tmp_path / "batch.html", f"#{MANY}")
    assert "broken item" in page.run("document.getElementById('main').textContent")


@sgl.function
def aspects(s, review):
    s += sgl.user(review)
    for fork, name in zip(s.fork(2), ("room", "food"), strict=True):
        fork += sgl.user(f"And the {name}?") + sgl.assistant(
            sgl.select(name, ["good", "bad"]) + sgl.gen("why", max_tokens=3, ignore_eos=True)
        )


def test_the_output_of_a_batch_names_every_branch_and_its_variables(page, engine, tmp_path):
    states = aspects.run_batch([("Clean room.",), ("Cold soup.",)], backend=engine, temperature=0)
    report(states, tmp_path / "batch.html")
    page.open(tmp_path / "batch.html")
    assert page.run("[...document.querySelectorAll('.c-input')].map(c => c.textContent)") == [
        "Clean room.",
        "Cold soup.",
    ]
    rows = page.run(
        "[...document.querySelectorAll('.c-output')].map(c => [...c.querySelectorAll('.out')].map(o => "
        "[o.firstChild.textContent, o.lastChild.textContent]))"
    )
    assert rows == [[["0.1 ", "And the room?"], ["0.2 ", "And the food?"]]] * 2
    names = page.run("[...document.querySelectorAll('.c-output .made b')].map(b => b.textContent)")
    assert names == ["room", "why", "food", "why"] * 2
    tiles = page.run("[...document.querySelectorAll('.tile')].map(t => t.lastChild.textContent)")
    assert {"wall clock", "wait per operation", "compute per operation"} <= set(tiles)


def test_pictures_thoughts_and_copying(page, state, tmp_path):
    data = copy.deepcopy(state.report().data)
    branch = data["runs"][0]["branches"][0]
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    branch["pieces"][1]["media"] = {"kind": "image", "source": "<b>a.gif", "url": pixel}
    why = next(piece for piece in branch["pieces"] if piece.get("name") == "why")
    why["samples"][0] |= {"thought": "<i>first</i>", "spans": None}
    RunReport(data).save(tmp_path / "page.html")
    page.open(tmp_path / "page.html", "#0/0")
    assert page.run("document.images[0].complete && document.images[0].naturalWidth") == 1
    assert page.run("document.images[0].alt") == "image: <b>a.gif"
    assert page.run("document.querySelector('#details details pre').textContent") == "<i>first</i>"
    page.run("document.addEventListener('copy', () => (window.taken = document.activeElement.value))")
    page.click("[...document.querySelectorAll('#left button')].find(b => b.textContent === 'copy text')")
    page.wait("document.getElementById('said').textContent === 'copied'")
    assert page.run("window.taken") == state.text()


def test_a_large_batch_draws_some_rows_at_first(page, state, tmp_path):
    data = state.report().data
    few = {**data["runs"][0], "branches": []} | {"error": {"type": "ValueError", "message": "no"}, "state": "failed"}
    RunReport({**data, "runs": [data["runs"][0]] + [few] * 1200}).save(tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert page.run("document.querySelectorAll('.runs tbody tr').length") == 500
    page.run("document.querySelector('#more button').click()")
    assert page.run("document.querySelectorAll('.runs tbody tr').length") == 1201


def test_a_notebook_frame_draws_the_page(page, state, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<meta charset=utf-8><div id=main>{state.report()._repr_html_()}</div>", encoding="utf-8"
    )
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=(tmp_path / "notebook.html").as_uri())
    page.wait("document.querySelector('iframe') !== null")
    with page.in_frame():
        page.wait("document.querySelectorAll('.lane').length === 4")
        page.run("[...document.querySelectorAll('.bar')].at(-1).click()")
        assert page.run("document.querySelector('#details h2').textContent") == "draft"
