"""Record, replay, resume, edit: each against a run without a journal, and with counts of what was computed."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import journal_programs
import pytest
from journal_programs import CITIES, LoggedBackend, digest, facts, play, random_spec, trip

import sgl
from sgl.lang.backend import SelectRequest
from sgl.lang.backends.scripted.scripted_backend import Delayed, Scripted
from sgl.lang.chat import ChatTemplate
from sgl.lang.errors import (
    DeadlineExceeded,
    JournalError,
    ProgramCancelled,
    ProgramError,
    RecordedError,
    ReplayMismatch,
    TextOfNodeError,
)
from sgl.lang.journal import Journal, journalled, record, replay, resume
from sgl.lang.journal.journal_node import rebuild
from sgl.lang.journal.journal_request import once_content, select_content

ITEMS = 3


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def run(program, backend, items, **options):
    return [facts(state) for state in program.run_batch(items, backend=backend, **options)]


def recorded(path, program, items, seed=7, **options):
    with record(path, LoggedBackend(), seed=seed) as backend:
        return run(program, backend, items, **options)


# --- random programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_replay_as_they_were_recorded(path, seed):
    items = [{"spec": random_spec(random.Random(seed + 100 * (i // 2)))} for i in range(ITEMS)]  # 0 and 1 are equal
    results = recorded(path, play, items)
    with replay(path) as backend:
        assert run(play, backend, items) == results
        assert not backend.computed and len(backend.served) == len(Journal.open(path))


@pytest.mark.parametrize("seed", range(10))
def test_a_journal_changes_nothing_about_a_run_with_a_seed(path, seed):
    items = [{"spec": random_spec(random.Random(seed))}] * ITEMS
    with record(path, LoggedBackend()) as backend:
        assert run(play, backend, items, seed=3) == run(play, LoggedBackend(), items, seed=3)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_resuming_from_a_prefix_gives_the_same(path, seed):
    items = [{"spec": random_spec(random.Random(seed))}] * 2
    results = recorded(path, play, items)
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    cuts = [(end, kept) for kept, end in enumerate(ends[1:], 1)][:: 1 + len(ends) // 20] + [(ends[0], 0)]
    for cut, kept in cuts:
        path.write_bytes(data[:cut])
        check_resumed(path, items, results, len(ends) - 1 - kept)
    for cut, kept in [(ends[0] + 5, 0), (ends[-1] - 1, len(ends) - 2)]:  # in the middle of a line
        path.write_bytes(data[:cut])
        with pytest.warns(UserWarning, match="torn"):
            check_resumed(path, items, results, len(ends) - 1 - kept)


def check_resumed(path, items, results, missing):
    inner = LoggedBackend()
    with resume(path, inner) as backend:
        assert run(play, backend, items) == results
        assert inner.count == len(backend.computed) == missing
    assert run(play, replay(path), items) == results


@pytest.mark.parametrize("seed", range(25))
def test_an_edit_recomputes_exactly_what_depends_on_it(path, seed):
    rng = random.Random(seed)
    items = [{"spec": random_spec(rng), "mark": mark} for mark in ("one", "two")]
    first = LoggedBackend()
    with record(path, first) as backend:
        run(play, backend, items, seed=5)
    journal = Journal.open(path)
    nodes = [node for node in journal.nodes if node.kind == "gen"]
    if not nodes:
        return
    node = rng.choice(nodes)
    spot = (journal.prompt(node), node.name, node.request.get("seed"))

    def edited(prompt, request):
        greedy = request.options.temperature == 0
        asked = (prompt, request.name, None if greedy else request.options.seed)
        return "EDITED " if asked == spot else digest(prompt, request)

    oracle, inner = LoggedBackend(edited), LoggedBackend()
    expected = run(play, oracle, items, seed=5)
    journal.edit(node, "EDITED ")
    with resume(path, inner) as backend:
        results = run(play, backend, items, seed=5)
    assert [r[:2] for r in results] == [r[:2] for r in expected]
    assert inner.asked == oracle.asked - first.asked


# --- counts ------------------------------------------------------------------------------------------------


def test_an_edit_in_one_branch_leaves_the_others(path):
    recorded(path, trip, CITIES[:4])
    journal = Journal.open(path)
    node = journal.find("tip", path="2.1", program="trip")
    assert (node.name, node.path, node.program, Path(node.file).name) == ("tip", "2.1", "trip", "journal_programs.py")
    assert journal.prompt(node) == "City: c2\nSeason: " + journal.find("season", path="2").text + "\nsee: "
    journal.edit(node, "the tower")
    inner = LoggedBackend()
    with resume(path, inner) as backend:
        states = trip.run_batch(CITIES[:4], backend=backend)
        assert "; the tower; " in states[2].text()
    assert sorted(node.name for node in backend.computed) == ["rank", "verdict"]
    assert [node.path for node in backend.computed] == ["2.1", "2"]


def test_a_changed_program_recomputes_what_is_behind_the_change(path):
    @sgl.function
    def steps(s, second, tokens=128):
        s += "a" + sgl.gen("a", temperature=0)
        s += second + sgl.gen("b", max_tokens=tokens, temperature=0)
        s += "c" + sgl.gen("c", temperature=0)

    def rule(prompt, request):
        return f"<{len(prompt)}>"

    def computed(**arguments):
        with resume(path, LoggedBackend(rule)) as backend:
            steps.run(backend=backend, **arguments).sync()
            return [node.name for node in backend.computed]

    with record(path, LoggedBackend(rule)) as backend:
        steps.run("b", backend=backend)
    assert computed(second="b") == []
    assert computed(second="B") == ["b", "c"]
    assert computed(second="b", tokens=5) == ["b"]  # the text comes out the same: what is behind it is served
    assert computed(second="b", tokens=5) == computed(second="B") == []


def test_a_new_item_in_front_computes_only_itself_where_nothing_is_sampled(path):
    recorded(path, trip, CITIES[:3], temperature=0)
    inner = LoggedBackend()
    with resume(path, inner) as backend:
        trip.run_batch([{"city": "new"}, *CITIES[:3]], backend=backend, temperature=0)
    assert inner.count == 8


def test_cutting_literals_differently_changes_nothing(path):
    @sgl.function
    def cut(s, parts):
        for part in parts:
            s += part
        s += sgl.gen("x")

    recorded(path, cut, [{"parts": ["ab", "cd"]}])
    assert run(cut, replay(path), [{"parts": ["a", "", "bcd"]}])


# --- crashes -----------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_killed_batch_is_resumed(path, tmp_path):
    expected = recorded(tmp_path / "whole.jsonl", trip, CITIES)
    total = len(Journal.open(tmp_path / "whole.jsonl"))
    code = f"import journal_programs as p; p.record_slowly({str(path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(journal_programs.__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        wait_for_lines(path, 30, process)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    whole_lines = path.read_bytes().count(b"\n") - 1
    assert 29 <= whole_lines < total
    inner = LoggedBackend()
    with resume(path, inner) as backend:
        assert run(trip, backend, CITIES) == expected
    assert (len(backend.served), inner.count) == (whole_lines, total - whole_lines)


def wait_for_lines(path, count, process):
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)


# --- many at once ---------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_two_hundred_equal_and_unequal_items(path):
    items = [{"city": f"c{number // 2}"} for number in range(200)]
    results = recorded(path, trip, items)
    assert len({result[0] for result in results}) == 200  # equal items have seeds of their own
    assert run(trip, replay(path), list(items)) == results
    assert len({node.id for node in Journal.open(path)}) == 8 * 200


def test_equal_runs_one_after_another_give_their_own_answers(path):
    with record(path, LoggedBackend(), seed=1) as backend:
        first, second = (facts(trip.run("x", backend=backend)) for _ in range(2))
    assert first != second
    backend = replay(path)
    assert [facts(trip.run("x", backend=backend)) for _ in range(2)] == [first, second]
    with pytest.raises(ReplayMismatch, match="2 times and is requested once more"):
        trip.run("x", backend=backend)


def test_the_same_seed_records_the_same(path, tmp_path):
    assert recorded(path, trip, CITIES) == recorded(tmp_path / "again.jsonl", trip, CITIES)
    assert recorded(tmp_path / "other.jsonl", trip, CITIES, seed=8) != recorded(tmp_path / "b.jsonl", trip, CITIES)


def test_recording_keeps_chains_in_flight(path):
    """Nothing waits for a result, neither while recording nor behind the last recorded node."""

    @sgl.function
    def chain(s):
        s += "a" + sgl.gen("a") + "b" + sgl.gen("b") + "c" + sgl.gen("c") + sgl.select("d", ["x", "y"])

    def result_of(make):
        inner = LoggedBackend()
        inner.gate.clear()  # the backend does nothing yet
        with make(inner) as backend:
            state = chain.run(backend=backend)
            assert inner.worker._work_queue.qsize() >= 6  # three gens or what restores them, three literals, a select
            inner.gate.set()
            return facts(state)

    result = result_of(lambda inner: record(path, inner, seed=1))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert result_of(lambda inner: resume(path, inner)) == result
    assert len(Journal.open(path)) == 4


# --- failures ---------------------------------------------------------------------------------------------------


def refusing(prompt, request):
    if request.name == "tip" and "see" in prompt:
        raise OverflowError("too much to see")
    return digest(prompt, request)


class Strange(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")


def strange(prompt, request):
    raise Strange(1, 2)


def test_failures_are_replayed_and_recomputed(path):
    with record(path, LoggedBackend(refusing), seed=2) as backend, pytest.raises(ProgramError):
        trip.run("x", backend=backend)
    with pytest.raises(ProgramError, match="OverflowError: too much to see") as caught:
        trip.run("x", backend=replay(path))
    assert isinstance(caught.value.__cause__, OverflowError)
    served = len([node for node in Journal.open(path) if not node.error])
    with resume(path, LoggedBackend()) as backend:
        result = facts(trip.run("x", backend=backend))
    assert len(backend.served) == served and "tip" in {node.name for node in backend.computed}
    assert not [node for node in Journal.open(path) if node.error]
    assert facts(trip.run("x", backend=replay(path))) == result


def test_failures_of_unknown_types_keep_their_name(path):
    @sgl.function
    def one(s):
        s += "a" + sgl.gen("a")

    with record(path, LoggedBackend(strange)) as backend:
        one.run(backend=backend)
    error = one.run(backend=replay(path)).error()
    assert isinstance(error.__cause__, RecordedError) and "Strange: 1 2" in str(error)


def test_the_names_of_classes_in_journals_outlive_moves_of_their_modules():
    """Addresses are made of them, so these names must never change."""
    written = select_content(SelectRequest(["a", "b"], sgl.token_length_normalized))
    assert written.values["method"] == ["sgl.lang.choices.TokenLengthNormalized", {}]
    assert once_content("x", (sgl.gen("y"),), {}).values["args"] == [["sgl.lang.ir.SglGen", {"name": "y"}]]
    error = rebuild({"type": "sgl.lang.ir.TextOfNodeError", "message": "no text"})
    assert isinstance(error, TextOfNodeError) and str(error) == "no text"


def test_what_is_raised_at_once_is_raised_at_once_again(path):
    @sgl.function
    def schema(s):
        s += sgl.gen("a", json_schema="{}")

    for make in (lambda: record(path, LoggedBackend()), lambda: replay(path)):
        with make() as backend, pytest.raises(ProgramError, match="knows no schemas") as caught:
            schema.run(backend=backend)
        assert isinstance(caught.value.__cause__, ValueError)


def test_nodes_behind_a_failed_one_fail_alike(path):
    """A chain that was recorded to its end, resumed where its first node has to be made again, and fails."""

    @sgl.function
    def chain(s, tokens):
        s += "a" + sgl.gen("a", max_tokens=tokens) + "b" + sgl.gen("b")

    recorded(path, chain, [{"tokens": 3}])

    def failing(prompt, request):
        raise ZeroDivisionError("no more")

    inner = LoggedBackend(failing)
    inner.gate.clear()
    with resume(path, inner) as backend:
        state = chain.run(4, backend=backend)
        inner.gate.set()
        with pytest.raises(ProgramError, match="no more"):
            state["b"]
    assert [node.name for node in backend.computed] == ["a"]


def test_a_run_that_was_stopped_is_finished_later(path):
    def tip(delay):
        return lambda prompt, request: Delayed(delay, "b") if "see" in prompt else prompt[-4:-2]

    def script(delay):
        return Scripted({"season": "spring", "tip": tip(delay), "rank": "low", "verdict": "good"})

    with record(path, script(60)) as backend:
        state = trip.run("x", backend=backend, stream=True)
        assert state["season"] == "spring"
        state.cancel()
        assert isinstance(state.error(), ProgramCancelled)
    with resume(path, script(60)) as backend, pytest.raises(DeadlineExceeded):
        trip.run("x", backend=backend, timeout=0.05)
    with resume(path, script(0)) as backend:
        assert trip.run("x", backend=backend).text().endswith("All: at; b; ep\nVerdict: good")
    assert backend.served and backend.computed


# --- mismatches ----------------------------------------------------------------------------------------------


def test_a_mismatch_names_variable_line_and_difference(path):
    recorded(path, trip, [{"city": "Rome"}])
    with pytest.raises(ReplayMismatch) as caught:
        trip.run("Bern", backend=replay(path))
    line = trip.func.__code__.co_firstlineno + 2
    assert str(caught.value).startswith(f"{journal_programs.__file__}:{line}: gen 'season' (path 0) is not in ")
    assert "differs at character 6: 'City: Rome\\nSeason: ' was recorded, 'City: Bern\\nSeason: '" in str(caught.value)
    with pytest.raises(
        ReplayMismatch, match=r"gen 'season' .*recorded with temperature=\(as usual\) .* temperature=0.5"
    ):
        trip.run("Rome", backend=replay(path), temperature=0.5, top_p=1)


def test_a_mismatch_of_an_option_of_the_first_gen(path):
    @sgl.function
    def one(s, tokens, name="a"):
        s += "x" + sgl.gen(name, max_tokens=tokens)

    recorded(path, one, [{"tokens": 3}])
    with pytest.raises(ReplayMismatch, match="recorded with max_new_tokens=3 and is asked with max_new_tokens=4"):
        one.run(4, backend=replay(path))
    assert one.run(3, "renamed", backend=replay(path))["renamed"]  # a name decides nothing


# --- streaming, async, the thin forms ------------------------------------------------------------------------------


def test_streams_come_in_their_recorded_pieces(path):
    @sgl.function
    def one(s):
        s += "x " + sgl.gen("a") + sgl.select("b", ["yes", "no"])

    def pieces(backend):
        state = one.run(backend=backend, stream=True)
        return list(state.text_iter("a")), list(state.text_iter())

    with record(path, LoggedBackend(), seed=1) as backend:
        first = pieces(backend)
    assert len(first[0]) == 2
    assert pieces(replay(path)) == first
    with resume(path, LoggedBackend()) as backend:
        assert pieces(backend) == first and not backend.computed


def test_event_loops(path):
    async def batch(backend):
        return [facts(state) for state in await trip.arun_batch(CITIES, backend=backend)]

    with record(path, LoggedBackend(), seed=7) as backend:
        results = asyncio.run(batch(backend))
    assert asyncio.run(batch(replay(path))) == results


def test_a_path_resumes_itself(path):
    inner = LoggedBackend()
    first = facts(trip.run("x", backend=inner, journal=path))
    assert inner.count == 8
    assert facts(trip.run("x", backend=inner, journal=path)) == first
    assert inner.count == 8
    trip.run("y", backend=journalled(inner, path)).sync()
    assert inner.count == 16


def test_one_process_has_one_journal_of_a_file(path):
    """Runs with a path, reading, editing and resuming, with no block that closes anything."""
    inner = LoggedBackend()
    state = trip.run("x", backend=inner, journal=path)
    state.sync()
    journal = Journal.open(path)
    journal.edit(journal.find("verdict"), "a fine day")
    assert trip.run("x", backend=inner, journal=path)["verdict"] == "a fine day"
    with resume(path, inner) as backend:
        assert trip.run("x", backend=backend)["verdict"] == "a fine day"
        more = trip.run("y", backend=inner, journal=path)
    more.sync()
    assert len(Journal.open(path)) == 16 and inner.count == 16
    path.unlink()
    trip.run("x", backend=inner, journal=path).sync()
    assert (len(Journal.open(path)), inner.count) == (8, 24)


def test_a_loop_has_its_nodes_in_order(path):
    @sgl.function
    def loop(s):
        for _ in range(3):
            s += " next:" + sgl.gen("x")

    recorded(path, loop, [{}])
    journal = Journal.open(path)
    texts = [journal.find("x", index=index).text for index in range(3)]
    assert journal.prompt(journal.nodes[-1]) == f" next:{texts[0]} next:{texts[1]} next:"
    journal.edit(journal.find("x", index=1), "new ")
    with resume(path, LoggedBackend()) as backend:
        loop.run(backend=backend).sync()
    assert len(backend.computed) == 1
    assert Journal.open(path).find("x", index=2).text == backend.computed[0].text != texts[2]


def test_chat_templates_are_in_the_journal(path):
    @sgl.function
    def chat(s):
        s += sgl.system("Be brief.") + sgl.user("Hi") + sgl.assistant(sgl.gen("a"))

    with record(path, LoggedBackend(template="chatml"), seed=1) as backend:
        first = chat.run(backend=backend)
        messages = first.messages()
    second = chat.run(backend=replay(path))
    assert (second.text(), second.messages()) == (first.text(), messages)
    assert "<|im_start|>user" in second.text()
    assert Journal.open(path).nodes[0].request["template_stops"] == ["<|im_end|>"]


class Counting(ChatTemplate):
    """A template that is code."""

    def get_prefix_and_suffix(self, role, hist_messages):
        return f"<{role} {len(hist_messages)}>", "</>"


def test_templates_that_are_code_are_written_down_turn_by_turn(path):
    @sgl.function
    def chat(s, turns):
        for _ in range(turns):
            s += sgl.user("Hi") + sgl.assistant(sgl.gen("a"))

    inner = LoggedBackend()
    inner.chat_template = Counting("counting", None, {}, stop_str=("</>",))
    with record(path, inner) as backend:
        first = chat.run(2, backend=backend).text()
    assert "<user 2>Hi</><assistant 3>" in first
    assert chat.run(2, backend=replay(path)).text() == first
    with pytest.raises(ReplayMismatch, match="has no turn of 'user' after the turns"):
        chat.run(3, backend=replay(path))


def test_the_program_of_a_node_is_the_function_around_it(path):
    @sgl.function
    def outer(s):
        forks = s.fork(2)
        [child.__iadd__(f"{index}" + sgl.gen("x")) for index, child in enumerate(forks)]
        forks += lambda index: sgl.gen("y")

    recorded(path, outer, [{}])
    assert {node.program for node in Journal.open(path)} == {"outer"}


def test_nothing_of_a_run_stays_alive(path):
    with record(path, LoggedBackend()) as backend:
        state = trip.run("x", backend=backend)
        state.sync()
        stream = weakref.ref(state.stream_executor.stream)
        gc.collect()
        del state
        gc.collect()
        assert stream() is None


def test_streams_are_closed(path):
    inner = LoggedBackend()
    with record(path, inner) as backend:
        trip.run("x", backend=backend)
    assert inner.open_streams == 3  # the forks, which the program does not join
    with resume(path, inner) as backend:
        trip.run("x", backend=backend)
    assert inner.open_streams == 3  # what is served opens none


def test_pictures_count_by_their_content(path, tmp_path):
    @sgl.function
    def look(s, picture):
        s += sgl.user(sgl.image(picture) + "What?") + sgl.assistant(sgl.gen("a"))

    one, other = tmp_path / "one.png", tmp_path / "other.png"
    one.write_bytes(b"one"), other.write_bytes(b"other")
    script = Scripted(["a cat", "a dog"])
    with record(path, script) as backend:
        look.run(str(one), backend=backend)
    for same in (str(one), one, b"one"):
        assert look.run(same, backend=replay(path))["a"] == "a cat"
    with pytest.raises(ReplayMismatch, match="roles or pictures before it differ"):
        look.run(str(other), backend=replay(path))
    with resume(path, script) as backend:
        assert look.run(str(other), backend=backend)["a"] == "a dog"
    assert [call.media[0].source for call in script.calls] == [str(one), str(other)]


def test_what_a_backend_refuses_is_refused_with_a_journal_too(path):
    @sgl.function
    def look(s):
        s += "See " + sgl.image("cat.png") + sgl.gen("a")

    errors = []
    for backend in (LoggedBackend(), record(path, LoggedBackend())):
        with pytest.raises(Exception, match="does not accept images") as caught:
            look.run(backend=backend)
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


# --- the file ------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_used(path, tmp_path):
    recorded(path, trip, CITIES[:1])
    with pytest.raises(JournalError, match=r"is there already; continue it with sgl.resume\('"):
        record(path, LoggedBackend())
    with resume(path, LoggedBackend()) as backend:
        code = f"import sgl; sgl.Journal.open({str(path)!r}).acquire()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "is being written by another process" in done.stderr
        trip.run("other", backend=backend)
    with pytest.raises(ProgramError, match="is closed; run inside its `with` block"):
        trip.run("another", backend=backend).text()
    other = tmp_path / "other.jsonl"
    other.write_text("hello\n")
    with pytest.raises(JournalError, match=r"other.jsonl:1 is damaged \(it is not JSON"):
        Journal.open(other)
    other.write_text('{"a": 1}\n')
    with pytest.raises(JournalError, match="does not begin like a journal"):
        Journal.open(other)
    other.write_text("")
    with pytest.raises(JournalError, match="empty; there is nothing to replay"):
        replay(other)


def test_a_torn_header_begins_anew(path):
    path.write_text('{"journal": 1, "se')
    with pytest.warns(UserWarning, match="torn"), resume(path, LoggedBackend()) as backend:
        trip.run("x", backend=backend)
    assert Journal.open(path).header["seed"] >= 0 and len(Journal.open(path)) == 8


def test_finding_and_editing_say_what_is_wrong(path):
    recorded(path, trip, CITIES[:2])
    journal = Journal.open(path)
    with pytest.raises(JournalError, match="its nodes are named rank, season, tip, verdict"):
        journal.find("nothing")
    with pytest.raises(JournalError, match=r"6 nodes have .* select one with"):
        journal.find("tip")
    assert [journal.find("tip", index=index).path for index in range(6)] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    with pytest.raises(JournalError, match="has 6 nodes with"):
        journal.find("tip", index=6)
    with pytest.raises(JournalError, match="is not a node of"):
        Journal.open(path).edit(journal.nodes[0], "x")
    with pytest.raises(ValueError, match="not one of the choices"):
        journal.edit(journal.find("rank", path="0.0"), "middling")
    with pytest.raises(ValueError, match="give a string"):
        journal.edit(journal.nodes[0], 5)


def test_edits_stay_and_the_last_one_counts(path):
    recorded(path, trip, CITIES[:1])
    for text in ("winter", "spring"):
        journal = Journal.open(path)
        journal.edit(journal.find("season"), text)
    node = Journal.open(path).find("season")
    assert (node.text, node.edited, node.meta_info["edited"]) == ("spring", True, True)


def test_texts_of_all_kinds(path):
    texts = ["né\u2028\x00\ud800", "日本\n\r\x85", '"\\', ""]

    @sgl.function
    def many(s):
        for index in range(len(texts)):
            s += f"{index}" + sgl.gen("x")

    with record(path, LoggedBackend(lambda prompt, request: texts[int(prompt[-1])])) as backend:
        first = many.run(backend=backend).text()
    assert many.run(backend=replay(path)).text() == first
    assert [
        json.loads(line.decode("utf-8", "surrogatepass")).get("text", "")
        for line in path.read_bytes().split(b"\n")[1:-1]
    ] == texts


def test_another_model_is_told(path):
    class Other(LoggedBackend):
        def get_model_name(self):
            return "other"

    recorded(path, trip, CITIES[:1])
    with pytest.warns(UserWarning, match="recorded with LoggedBackend; what is missing comes from other"):
        resume(path, Other()).close()
