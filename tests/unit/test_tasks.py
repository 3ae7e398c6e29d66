"""The four forms that every task has: a call, arun, batch, abatch; on scripted answers."""

import asyncio
import pickle

import pytest

import sgl
from sgl.lang.errors import BatchError, UnknownOptionError
from sgl.tasks.task import Task


@sgl.function
def shorten_program(s, text, times=1):
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("short", int))
    return s.get("short") * times


class Shorten(Task):
    def __call__(self, text, times=1, **options):
        return self._run({"text": text, "times": times}, options)

    async def arun(self, text, **options):
        return await self._arun({"text": text}, options)

    def batch(self, texts, *, return_exceptions=False, **options):
        return self._run_batch([{"text": text} for text in texts], options, return_exceptions)

    async def abatch(self, texts, *, return_exceptions=False, **options):
        return await self._arun_batch([{"text": text} for text in texts], options, return_exceptions)


shorten = Shorten("shorten", shorten_program)


def scripted():
    return sgl.Scripted({"short": lambda prompt, request: "?" if "bad" in prompt else "7"})


def test_a_call_returns_the_value():
    assert shorten("a", 2, backend=scripted()) == 14
    assert asyncio.run(shorten.arun("a", backend=scripted())) == 7


def test_a_batch_returns_the_values_in_order():
    assert shorten.batch(["a", "b"], backend=scripted(), num_threads=2, progress_bar=True) == [7, 7]
    assert asyncio.run(shorten.abatch(["a", "b"], backend=scripted())) == [7, 7]
    assert shorten.batch([]) == []


def test_an_item_that_fails_leaves_the_others():
    with pytest.raises(BatchError, match=r"item 1 of 3, shorten\(text='bad'\), raised ProgramError") as caught:
        shorten.batch(["a", "bad", "c"], backend=scripted())
    assert [caught.value.results[0], caught.value.results[2]] == [7, 7]
    assert caught.value.index == 1 and caught.value.arguments == {"text": "bad"}
    assert caught.value.__cause__ is caught.value.results[1]


@pytest.mark.parametrize("form", ["batch", "abatch"])
def test_errors_as_results(form):
    results = getattr(shorten, form)(["a", "bad"], backend=scripted(), return_exceptions=True)
    first, second = asyncio.run(results) if form == "abatch" else results
    assert first == 7 and isinstance(second, sgl.ProgramError)


def test_a_failed_call_raises_its_error():
    with pytest.raises(sgl.ProgramError, match="short"):
        shorten("bad", backend=scripted())


def test_temperature_is_zero_unless_given():
    seen = []
    backend = sgl.Scripted({"short": lambda prompt, request: seen.append(request.options.temperature) or "7"})
    shorten("a", backend=backend)
    shorten("a", backend=backend, temperature=0.5)
    assert seen == [0.0, 0.5]


def test_unknown_options_are_named():
    with pytest.raises(UnknownOptionError, match="shorten has no parameter or option 'retrys'"):
        shorten("a", retrys=3)
    with pytest.raises(UnknownOptionError, match=r"shorten.batch has no option 'generator_style'"):
        shorten.batch(["a"], generator_style=True)


def test_a_task_is_pickled_by_its_name():
    assert repr(shorten) == "<sgl.shorten>"
    assert pickle.loads(pickle.dumps(shorten)) is shorten
