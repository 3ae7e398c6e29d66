"""Programs of our own language on a real server of the native protocol: the same as on the engine in this process."""

from __future__ import annotations

import pytest
from server_rig import serving

import sgl
from sgl.runtime.errors import TruncatedError


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(threads=1, dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def remote(engine):
    with serving(engine) as url:
        backend = sgl.RuntimeEndpoint(url)
        yield backend
        backend.shutdown()


@sgl.function
def story(s):
    s += "Once upon a time" + sgl.gen("start", max_tokens=10, temperature=0, min_tokens=4)
    s += "\nWhat is 2 + 3? " + sgl.gen("sum", max_tokens=4, regex=r"[0-9]+", temperature=0)
    s += "\nThe sky is" + sgl.gen("sky", max_tokens=12, stop=["\n", "."], temperature=0, min_tokens=4) + "."


@sgl.function
def verdict(s, method):
    s += "The film was a wonderful surprise from start to end.\nLabel:"
    s += sgl.select("label", [" positive", " negative", " neutral"], choices_method=method)


@sgl.function
def branches(s):
    s += "Three facts.\n"
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += f"Fact {number}:" + sgl.gen("fact", max_tokens=8, temperature=0, stop="\n", ignore_eos=True)
    s += " ".join(fork["fact"] for fork in forks)
    s += sgl.gen("end", max_tokens=5, temperature=0, min_tokens=4)


def test_a_program_writes_the_same_on_the_server(engine, remote):
    here, there = story.run(backend=engine), story.run(backend=remote)
    assert there.text() == here.text()
    assert {name: there[name] for name in ("start", "sum", "sky")} == {
        name: here[name] for name in ("start", "sum", "sky")
    }


@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
    ids=lambda method: type(method).__name__,
)
def test_a_select_decides_the_same_on_the_server(engine, remote, method):
    here, there = verdict.run(method, backend=engine), verdict.run(method, backend=remote)
    assert there["label"] == here["label"]
    scores = [state.get_meta_info("label")["normalized_prompt_logprobs"] for state in (here, there)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)


def test_forks_write_the_same_on_the_server(engine, remote):
    assert branches.run(backend=remote).text() == branches.run(backend=engine).text()


@sgl.function
def turns(s):
    s += sgl.system("Choose the label that fits the text.\n- booking\n- complaint") + sgl.user(
        "A room for two, please."
    )
    s += sgl.assistant(sgl.select("kind", ["booking", "complaint"]))
    s += sgl.tool("{}") + sgl.assistant(sgl.gen("end", max_tokens=4, temperature=0))


def test_turns_are_written_as_the_model_knows_them(engine, remote):
    assert turns.run(backend=remote).text() == turns.run(backend=engine).text()


def test_a_program_streams_from_the_server(engine, remote):
    state = story.run(backend=remote, stream=True)
    pieces = list(state.text_iter())
    assert len(pieces) > 4
    assert "".join(pieces) == story.run(backend=engine).text()


def test_a_truncated_text_raises_on_the_server_too(remote):
    @sgl.function
    def cut(s):
        s += "Digits: " + sgl.gen("digits", max_tokens=2, regex="[0-9]{40}", error_on_truncation=True)

    with pytest.raises(sgl.ProgramError) as caught:
        cut.run(backend=remote)["digits"]
    assert isinstance(caught.value.__cause__, TruncatedError)


def test_the_front_of_a_program_is_computed_once(engine, remote):
    remote.flush_cache()
    state = branches.run(backend=remote)
    assert state.get_meta_info("end")["cached_tokens"] > 3
    assert remote.get_server_info()["version"]
    assert remote.health()
