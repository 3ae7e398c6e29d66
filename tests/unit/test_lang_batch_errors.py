"""A body that fails loses itself only: the error of the batch names the item and has the states of the others."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

import sgl
from sgl.lang.errors import BatchError


@sgl.function
def program(s, word, count=1):
    s += word + sgl.gen("a")
    if word == "bad":
        raise ZeroDivisionError("no " + "way")
    if word == "exit":
        raise KeyError(word)


ITEMS = [("one",), ("two", 2), ("bad", 7), ("three",), ("exit",), ("four",)]


def list_of(style, items, backend, **options):
    if style == "async":
        return asyncio.run(program.arun_batch(items, backend=backend, **options))
    if style == "generator":
        return list(program.run_batch(items, backend=backend, generator_style=True, **options))
    return program.run_batch(items, backend=backend, num_threads=1 if style == "alone" else 3, **options)


@pytest.mark.parametrize("style", ["batch", "alone", "async", "generator"])
def test_the_error_names_the_item_and_has_the_others(backend, style):
    with pytest.raises(BatchError) as caught:
        list_of(style, ITEMS, backend)
    error = caught.value
    assert "item 2 of 6, program(word='bad', count=7), raised ZeroDivisionError: no way; 1 more failed" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.index == 2 and error.arguments == {"word": "bad", "count": 7}
    given = 2 if style == "generator" else 0  # those the reader had
    assert error.results[:given] == [None] * given and len(error.results) == 6
    kinds = [type(result).__name__ for result in error.results[given:]]
    assert (
        kinds
        == ["ProgramState", "ProgramState", "ZeroDivisionError", "ProgramState", "KeyError", "ProgramState"][given:]
    )
    states = [result for result in error.results if isinstance(result, sgl.ProgramState)]
    assert all(state["a"] for state in states)


@pytest.mark.parametrize("style", ["batch", "alone", "async", "generator"])
def test_as_results_all_are_there(backend, style):
    results = list_of(style, ITEMS, backend, return_exceptions=True)
    assert [type(result).__name__ for result in results] == [
        "ProgramState",
        "ProgramState",
        "ZeroDivisionError",
        "ProgramState",
        "KeyError",
        "ProgramState",
    ]


def test_a_generator_waits_for_those_that_run(backend):
    backend.gate.clear()
    threading.Timer(0.2, backend.gate.set).start()
    states = program.run_batch([("bad",), ("one",), ("two",)], backend=backend, generator_style=True)
    with pytest.raises(BatchError) as caught:
        next(states)
    assert [type(result).__name__ for result in caught.value.results] == [
        "ZeroDivisionError",
        "ProgramState",
        "ProgramState",
    ]
    assert all(state.text() for state in caught.value.results[1:])


def test_long_arguments_are_cut_and_the_error_travels(backend):
    @sgl.function
    def fails(s, text, more):
        raise ValueError("bad")

    with pytest.raises(BatchError) as caught:
        fails.run_batch([("x" * 10_000, {"deep": ["y" * 10_000] * 10})], backend=backend)
    assert len(str(caught.value)) < 600 and caught.value.arguments["text"] == "x" * 10_000
    twin = pickle.loads(pickle.dumps(caught.value))
    assert str(twin) == str(caught.value) and twin.index == 0
