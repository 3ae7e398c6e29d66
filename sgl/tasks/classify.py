"""`sgl.classify` under its four forms. The programs that it runs are in `classify_program.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from sgl.lang.errors import BadValueError, shown
from sgl.lang.program.batch_options import BatchDisplayOptions, BatchOptions
from sgl.lang.program.run_options import RunOptions

from .calibration import Calibration, prompt_digest
from .classify_program import THRESHOLD, Classification, classify_program, multi_program
from .label_values import LabelValues
from .nearest_examples import NearestExamples, as_given
from .task import Task

if TYPE_CHECKING:
    from typing_extensions import TypeForm

Label = TypeVar("Label")
Texts = Sequence[Label] | Mapping[Label, str | None]
NoNone = Literal[False] | None
WithNone = Literal[True] | str


class _Classify(RunOptions, total=False):
    instructions: str | None
    examples: Sequence[tuple[str, Any]]
    multi: bool
    threshold: float
    calibration: Calibration | None


class _ClassifyBatch(BatchDisplayOptions, total=False):
    instructions: str | None
    examples: Sequence[tuple[str, Any]]
    multi: bool
    threshold: float
    calibration: Calibration | None
    return_exceptions: bool


class _ClassifyAsyncBatch(BatchOptions, total=False):
    instructions: str | None
    examples: Sequence[tuple[str, Any]]
    multi: bool
    threshold: float
    calibration: Calibration | None
    return_exceptions: bool


OWN = ("instructions", "examples", "multi", "threshold", "calibration")


class Classify(Task):
    """`sgl.classify`."""

    @overload
    def __call__(
        self, text: str, labels: TypeForm[Label], *, none: NoNone = ..., **options: Unpack[_Classify]
    ) -> Classification[Label]: ...
    @overload
    def __call__(
        self, text: str, labels: TypeForm[Label], *, none: WithNone, **options: Unpack[_Classify]
    ) -> Classification[Label | None]: ...
    @overload
    def __call__(
        self, text: str, labels: Texts[Label], *, none: NoNone = ..., **options: Unpack[_Classify]
    ) -> Classification[Label]: ...
    @overload
    def __call__(
        self, text: str, labels: Texts[Label], *, none: WithNone, **options: Unpack[_Classify]
    ) -> Classification[Label | None]: ...
    def __call__(
        self, text: str, labels: Any, *, none: bool | str | None = None, **options: Any
    ) -> Classification[Any]:
        """Choose the label that fits a text, with the probability of each.

        text: what is classified.
        labels: a list of texts; a dict of texts with what each means; or an Enum class, a Literal or bool, whose
            members or values are then the labels of the result. The model reads them, with their definitions.
        none: True adds the label "none of these", a text adds that one; its value is None.
        instructions: the task, in place of "Choose the label that fits the text."
        examples: (text, label) pairs, as turns before the text. With `multi` (text, labels), in the system turn. Or
            `sgl.nearest(pairs, k)`.
        multi: several labels may fit. Each is then a yes-or-no question in a fork after the text, which is computed
            once; `labels` of the result are those of at least `threshold` (0.5).
        calibration: what `sgl.calibrate` learnt for the same labels, instructions and examples; not with `multi`.
        options: as of `run`.

        A probability is that of the label as the whole answer, given that the answer is one of the labels. Returns a
        `Classification`. Needs a backend that scores texts: the embedded engine, `sgl serve` and other servers of its
        protocol, or a completions API that echoes log-probabilities. A chat API has no scores: a
        ProgramError names it (its cause is UnsupportedByBackendError). There, a program with
        `sgl.gen(name, Literal[...])` has the model write the label. Raises BadValueError, ProgramError.
        """
        task, arguments, run = self._prepared(labels, none, options)
        result: Classification[Any] = task._run({"text": _text(text), **arguments}, run)
        return result

    @overload
    async def arun(
        self, text: str, labels: TypeForm[Label], *, none: NoNone = ..., **options: Unpack[_Classify]
    ) -> Classification[Label]: ...
    @overload
    async def arun(
        self, text: str, labels: TypeForm[Label], *, none: WithNone, **options: Unpack[_Classify]
    ) -> Classification[Label | None]: ...
    @overload
    async def arun(
        self, text: str, labels: Texts[Label], *, none: NoNone = ..., **options: Unpack[_Classify]
    ) -> Classification[Label]: ...
    @overload
    async def arun(
        self, text: str, labels: Texts[Label], *, none: WithNone, **options: Unpack[_Classify]
    ) -> Classification[Label | None]: ...
    async def arun(
        self, text: str, labels: Any, *, none: bool | str | None = None, **options: Any
    ) -> Classification[Any]:
        """`sgl.classify(...)` for event loops."""
        task, arguments, run = self._prepared(labels, none, options)
        result: Classification[Any] = await task._arun({"text": _text(text), **arguments}, run)
        return result

    @overload
    def batch(
        self, texts: Sequence[str], labels: TypeForm[Label], *, none: NoNone = ..., **options: Unpack[_ClassifyBatch]
    ) -> list[Classification[Label]]: ...
    @overload
    def batch(
        self, texts: Sequence[str], labels: TypeForm[Label], *, none: WithNone, **options: Unpack[_ClassifyBatch]
    ) -> list[Classification[Label | None]]: ...
    @overload
    def batch(
        self, texts: Sequence[str], labels: Texts[Label], *, none: NoNone = ..., **options: Unpack[_ClassifyBatch]
    ) -> list[Classification[Label]]: ...
    @overload
    def batch(
        self, texts: Sequence[str], labels: Texts[Label], *, none: WithNone, **options: Unpack[_ClassifyBatch]
    ) -> list[Classification[Label | None]]: ...
    def batch(self, texts: Sequence[str], labels: Any, *, none: bool | str | None = None, **options: Any) -> Any:
        """Classify each of the texts; results in their order. Options are those of `run_batch`.

        Raises BatchError for the first text that failed, when all have ended. With `return_exceptions` an error is the
        result of its text.
        """
        task, arguments, run = self._prepared(labels, none, options)
        returned = run.pop("return_exceptions", False)
        return task._run_batch([{"text": text, **arguments} for text in _texts(texts)], run, returned)

    @overload
    async def abatch(
        self,
        texts: Sequence[str],
        labels: TypeForm[Label],
        *,
        none: NoNone = ...,
        **options: Unpack[_ClassifyAsyncBatch],
    ) -> list[Classification[Label]]: ...
    @overload
    async def abatch(
        self, texts: Sequence[str], labels: TypeForm[Label], *, none: WithNone, **options: Unpack[_ClassifyAsyncBatch]
    ) -> list[Classification[Label | None]]: ...
    @overload
    async def abatch(
        self, texts: Sequence[str], labels: Texts[Label], *, none: NoNone = ..., **options: Unpack[_ClassifyAsyncBatch]
    ) -> list[Classification[Label]]: ...
    @overload
    async def abatch(
        self, texts: Sequence[str], labels: Texts[Label], *, none: WithNone, **options: Unpack[_ClassifyAsyncBatch]
    ) -> list[Classification[Label | None]]: ...
    async def abatch(self, texts: Sequence[str], labels: Any, *, none: bool | str | None = None, **options: Any) -> Any:
        """`batch` for event loops."""
        task, arguments, run = self._prepared(labels, none, options)
        returned = run.pop("return_exceptions", False)
        return await task._arun_batch([{"text": text, **arguments} for text in _texts(texts)], run, returned)

    def _prepared(self, labels: Any, none: Any, options: dict[str, Any]) -> tuple[Task, dict[str, Any], dict[str, Any]]:
        """The task to run, the arguments of its program but the text, and the options of the run."""
        own = {name: options[name] for name in OWN if name in options}
        run = {name: value for name, value in options.items() if name not in OWN}
        multi, threshold, calibration = (
            own.pop("multi", False),
            own.pop("threshold", None),
            own.pop("calibration", None),
        )
        found = LabelValues.of("classify", labels, none, fewest=1 if multi else 2)
        examples = example_texts(found, own.pop("examples", ()), multi)
        arguments = {"labels": found, "examples": examples, "instructions": own.get("instructions")}
        if multi:
            _refuse_with_multi(none=none, calibration=calibration)
            return _multi, {**arguments, "threshold": _threshold(threshold)}, run
        if threshold is not None:
            raise BadValueError(f"classify: threshold={threshold!r} belongs to multi=True; leave it out")
        if calibration is not None:
            if not isinstance(calibration, Calibration):
                raise BadValueError(
                    f"classify: calibration is {shown(calibration)}; give what sgl.calibrate or sgl.Calibration.load "
                    "returned"
                )
            calibration.check(found, prompt_digest(found, own.get("instructions"), examples))
        return self, {**arguments, "calibration": calibration}, run


def example_texts(
    labels: LabelValues, examples: Sequence[tuple[str, Any]], multi: bool = False
) -> Sequence[tuple[str, Any]]:
    """Examples with the texts of their labels. Raises BadValueError for one that is no (text, label)."""
    found: list[tuple[str, Any]] = []
    for index, example in enumerate(examples := as_given(examples)):
        place = f"classify: example {index}"
        if not isinstance(example, list | tuple) or len(example) != 2 or not isinstance(example[0], str):
            raise BadValueError(f"{place} is {shown(example)}; give (text, {'labels' if multi else 'label'})")
        text, given = example
        if multi and (isinstance(given, str) or not isinstance(given, Sequence)):
            raise BadValueError(f"{place} has {shown(given)}; with multi=True give a list of the labels that fit")
        found.append((text, [labels.text_of(place, one) for one in given] if multi else labels.text_of(place, given)))
    return examples.with_values(found) if isinstance(examples, NearestExamples) else found


def _refuse_with_multi(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            why = {"none": "no label fits where `labels` of the result is empty"}.get(name, "it is made for one label")
            raise BadValueError(f"classify: {name}= with multi=True: {why}; leave {name}= out")


def _threshold(given: Any) -> float:
    if given is None:
        return THRESHOLD
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise BadValueError(f"classify: threshold is {given!r}; give a probability from 0 to 1")
    return float(given)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise BadValueError(f"classify: text is {shown(given)}; give the text to classify")
    return given


def _texts(given: Any) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadValueError(f"classify: texts is {shown(given)}; give a list of texts")
    return [_text(text) for text in given]


_multi = Task("classify", multi_program)
classify = Classify("classify", classify_program)
