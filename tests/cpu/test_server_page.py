"""The server's page in a real Chromium: it chats, shows constrained output and what the engine does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from chromium import Browser, browser, find_chromium
from server_rig import await_true, serving

from sgl.runtime import Engine
from sgl.runtime.server.web_page import FOLDER

NASTY = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script> Which city?"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as made:
        yield made


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine) as url:
        yield url


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here: install one (Debian: apt-get install chromium) or name it in SGL_CHROMIUM")
    with browser(program) as made:
        yield made


@contextmanager
def page(chrome: Browser, url: str, wait: str = "!!document.getElementById('say')") -> Iterator[Browser]:
    """The page, drawn; nothing may go wrong in it, and it may speak to nobody else."""
    chrome.errors.clear()
    chrome.requests.clear()
    chrome.show()
    chrome.call("Page.navigate", url=f"{url}/")
    chrome.wait(f"document.readyState === 'complete' && {wait}")
    yield chrome
    assert chrome.errors == []
    assert [each for each in chrome.requests if not each.startswith((url, "data:"))] == []


def fill(chrome: Browser, name: str, text: str) -> None:
    chrome.run(f"document.getElementById({json.dumps(name)}).value = {json.dumps(text)}")


def texts(chrome: Browser, selector: str) -> list[str]:
    return chrome.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.textContent)")


def test_chatting(chrome: Browser, url: str) -> None:
    with page(chrome, url):
        assert "LlamaForCausalLM" in texts(chrome, "#about")[0]
        for message in ("I am looking for a restaurant.", NASTY):
            fill(chrome, "say", message)
            chrome.click("document.getElementById('send')")
            chrome.wait(
                "document.getElementById('send').textContent === 'Send' && document.getElementById('said').textContent"
            )
        assert [text.strip() for text in texts(chrome, ".message.user .text")] == [
            "I am looking for a restaurant.",
            NASTY,
        ]
        answers = texts(chrome, ".message.assistant .text")
        notes = texts(chrome, ".message.assistant > .muted")
        assert len([text for text in answers if text]) == 2
        assert all("tokens" in note and "first after" in note for note in notes)
        assert not chrome.run("window.hacked")


def test_an_answer_can_be_stopped(chrome: Browser, url: str, engine: Engine) -> None:
    with page(chrome, url):
        chrome.click("document.getElementById('tab-form')")
        chrome.run(
            "(kind => { kind.value = 'regex'; kind.dispatchEvent(new Event('change')) "
            "})(document.getElementById('kind'))"
        )
        fill(chrome, "source", "[ab]{1900}")
        chrome.run("document.querySelector('#form input[aria-label=\"most tokens\"]').value = 1900")
        before = engine.stats().aborts
        chrome.click("document.getElementById('generate')")
        chrome.wait("document.getElementById('output').textContent.length > 3")
        chrome.click("document.getElementById('generate')")
        chrome.wait("document.getElementById('generate').textContent === 'Generate'")
        assert texts(chrome, "#verdict") == ["stopped"]
        await_true(lambda: engine.stats().aborts > before and not engine.stats().running)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf"])
def test_constrained_output(chrome: Browser, url: str, kind: str) -> None:
    with page(chrome, url):
        chrome.click("document.getElementById('tab-form')")
        chrome.run(
            f"(kind => {{ kind.value = '{kind}'; kind.dispatchEvent(new Event('change')) "
            f"}})(document.getElementById('kind'))"
        )
        chrome.click("document.getElementById('generate')")
        chrome.wait("document.getElementById('verdict').textContent")
        [output], [verdict] = texts(chrome, "#output"), texts(chrome, "#verdict")
        assert "tokens" in verdict
        if kind == "json_schema":
            assert json.loads(output)["city"] == "Lisbon"
            assert "valid JSON" in verdict
        chrome.run("document.querySelector('#output .token').click()")
        assert "%" in texts(chrome, ".alternatives")[0]


def test_a_mistake_is_told(chrome: Browser, url: str) -> None:
    with page(chrome, url) as drawn:
        drawn.click("document.getElementById('tab-form')")
        for source, words in (("{", "no JSON"), ('{"type": "obj"}', "obj")):
            fill(drawn, "source", source)
            drawn.click("document.getElementById('generate')")
            drawn.wait(f"document.getElementById('verdict').textContent.includes({json.dumps(words)})")
            assert drawn.run("document.getElementById('verdict').classList.contains('error')")
        drawn.errors[:] = [
            each for each in drawn.errors if "400" not in each
        ]  # the browser tells of the refused request


def test_live_metrics_move(chrome: Browser, url: str, engine: Engine) -> None:
    with page(chrome, url):
        chrome.wait("document.querySelectorAll('.figures dd').length > 4")
        engine.generate("One two three", max_tokens=40, ignore_eos=True)
        chrome.wait("document.querySelector('.curve polyline').getAttribute('points')?.split(' ').length > 1")
        assert len(texts(chrome, ".curve")) == 5
        assert "tokens" in texts(chrome, ".figures")[0]


def test_quantiles_of_a_histogram(chrome: Browser, url: str) -> None:
    with page(chrome, url):
        text = 'a_bucket{le="1.0"} 2\\na_bucket{le="2.0"} 4\\na_bucket{le="+Inf"} 4'
        found = chrome.run(
            "import('/page/live.js').then(live => [0.25, 0.5, 0.75].map(share => "
            f"live.quantile(live.parse('{text}'), {{}}, 'a', share)))"
        )
        assert found == [0.5, 1.0, 1.5]


def test_behind_a_key(chrome: Browser, engine: Engine) -> None:
    locked = "!document.getElementById('unlock').hidden"
    with serving(engine, api_keys=frozenset({"open-sesame"})) as url, page(chrome, url, locked) as drawn:
        fill(drawn, "key", "open-sesame")
        drawn.click("document.querySelector('#unlock button')")
        drawn.wait("!!document.getElementById('say') && document.querySelectorAll('.figures dd').length > 4")
        drawn.errors[:] = [each for each in drawn.errors if "401" not in each]


def test_what_it_is_made_of(url: str) -> None:
    answer = httpx.get(f"{url}/")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for path in FOLDER.iterdir():
        assert httpx.get(f"{url}/page/{path.name}").text == path.read_text(encoding="utf-8")
    for name in ("..%2Fpage.py", "page.py", "nothing.js", "%2e%2e"):
        refused = httpx.get(f"{url}/page/{name}")
        assert refused.status_code == 404 and str(FOLDER) not in refused.text


def test_without_the_page(engine: Engine) -> None:
    with serving(engine, page=False) as url:
        assert httpx.get(f"{url}/").status_code == httpx.get(f"{url}/page/main.js").status_code == 404
