"""A program that runs from its graph: traced once, improved by passes, executed without its Python body."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

from ..backend import Backend, Stream
from ..backends.default_backend import as_backend
from ..errors import LanguageError, ProgramError, TraceError, reject_unknown
from ..global_config import global_config
from ..places.source_location import SourceLocation, is_own
from ..program.batch_runs import OPTION_NAMES, WINDOW, make_calls
from ..program.program import Program, ProgramCall
from ..program.program_run import RunSettings, new_executor, split_options
from ..program.program_state import ProgramState
from ..program.type_parameters import Returned_co
from .compiled_parameters import CompiledParameters
from .compiled_state import CompiledState
from .graph_plan import GraphPlan
from .graph_structure import GraphStructure
from .plan_executor import PlanExecution
from .plan_passes.grammar_pass import prepare_grammars
from .plan_passes.pass_pipeline import AHEAD, HOIST, PASSES, improve
from .plan_passes.prefix_pass import PinnedPrefix, hoist_prefix, without_pinned_prefix
from .render.graph_svg import draw_graph
from .render.graphviz_dot import graph_as_dot
from .trace_placeholders import placeholders
from .trace_program import trace_program
from .tracer import TracerProgramState

Start = Callable[[int], ProgramState]


def compile_program(
    program: Program[..., Returned_co],
    backend: Any = None,
    bound: Mapping[str, Any] | None = None,
    passes: Collection[str] = tuple(PASSES),
) -> CompiledProgram[Returned_co]:
    """Trace a program and improve its graph by the passes of those names.

    Without a backend the default one is used, if there is one; else what depends on a backend is done by the
    first run. Raises TraceError where the program depends on generated values.
    """
    chosen = backend if backend is not None else global_config.default_backend
    found = None if chosen is None else as_backend(chosen)
    given = program.bind(**bound) if bound else program
    tracer = _traced(given, found)
    return CompiledProgram(given, tracer, found, passes)


def _traced(program: Program, backend: Backend | None) -> TracerProgramState:
    try:
        return trace_program(program, {}, backend, strict=True)
    except (LanguageError, KeyError):
        raise
    except Exception as error:
        raise TraceError(
            f"{_place_of(error, program)}: {program.__name__} cannot be compiled, its body failed on placeholders: "
            f"{type(error).__name__}: {error}. If it needs generated values in Python, use run() instead"
        ) from error


def _place_of(error: BaseException, program: Program) -> SourceLocation | None:
    """The line of the program's file, or else of the user's code, that raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_own(frame.filename)]
    here = [frame for frame in frames if frame.filename == program.func.__code__.co_filename] or frames
    return SourceLocation(here[-1].filename, here[-1].lineno or 0) if here else None


class ProgramGraph(GraphStructure):
    """What `graph()` of a traced or compiled program gives; notebooks show its drawing."""

    def svg(self) -> str:
        """A drawing with a column for each state."""
        return draw_graph(self)

    def dot(self) -> str:
        """The graph in Graphviz' language."""
        return graph_as_dot(self)

    def save(self, path: str | Path) -> None:
        """Write the drawing (.svg) or the Graphviz text (.dot, .gv)."""
        path = Path(path)
        path.write_text(self.dot() if path.suffix in (".dot", ".gv") else self.svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()


class CompiledProgram(Generic[Returned_co]):
    """What `program.compile()` gives.

    `passes` is a table of what one run hands to the engine before and after each pass. The program's Python
    body ran once, for the trace; runs execute the graph.
    """

    def __init__(
        self, program: Program, tracer: TracerProgramState, backend: Backend | None, passes: Collection[str]
    ) -> None:
        self.program = program
        self._tracer = tracer
        recording = tracer.recording
        written = GraphPlan((tuple(recording.steps),))
        self.parameters = CompiledParameters(program, recording.fixed, written)
        model_name = "a backend" if backend is None else backend.get_model_name()
        self.plan, self.passes = improve(
            written, self.parameters.examples(), tracer.chat_template, set(passes), model_name
        )
        self._pass_names = frozenset(passes)
        self._pins: dict[Any, PinnedPrefix] = {}
        self._prepared: dict[int, Backend] = {}
        self._lock = threading.Lock()
        if backend is not None:
            self._make_ready(backend)

    @property
    def __name__(self) -> str:
        return self.program.__name__

    def __repr__(self) -> str:
        return f"<compiled sgl.function {self.__name__}>"

    # --- the graph ---------------------------------------------------------------------------------------

    def graph(self) -> ProgramGraph:
        """States, nodes and dependencies; `graph().save("graph.svg")` draws them."""
        return ProgramGraph(self._tracer.recording.states)

    def print_graph(self) -> None:
        """Print all nodes, a line each, state by state."""
        print(self.graph().print(), end="")

    def save(self, path: str | Path) -> None:
        """Write a drawing of the graph (.svg), or its Graphviz text (.dot)."""
        self.graph().save(path)

    def _repr_svg_(self) -> str:
        return self.graph().svg()

    def wait_ready(self) -> None:
        """Wait until what is done ahead is done: compile() returns while the prefix is being computed."""
        with self._lock:
            pins = list(self._pins.values())
        for pin in pins:
            pin.computed.result()

    # --- running -----------------------------------------------------------------------------------------

    def run(self, /, *args: Any, **kwargs: Any) -> ProgramState[Returned_co]:
        """Run the graph. Arguments and options are those of the program's `run`.

        Returns at once, while branches wait for their values elsewhere: reading the state waits. A node that
        fails ends the run; the readers get its error. Raises ArgumentsError, BadValueError, UnknownOptionError.
        """
        given, options = split_options(self.program, kwargs)
        arguments = self.parameters.complete(self.parameters.positional(args, given))
        settings = RunSettings.of(options)
        return self._start(arguments, settings, *self._ready_plan(settings, "journal" in options))

    __call__ = run

    async def arun(self, /, *args: Any, **kwargs: Any) -> ProgramState[Returned_co]:
        """`run` for event loops: the state is finished when it comes (with stream=True it comes at once)."""
        state = self.run(*args, **kwargs)
        return state if state.stream_executor.streaming else await finished(state)

    async def arun_batch(
        self,
        batch_kwargs: Sequence[dict[str, Any] | Sequence[Any] | ProgramCall],
        *,
        return_exceptions: bool = False,
        **options: Any,
    ) -> list[Any]:
        """`run_batch` for event loops."""
        options = {**self.program.run_options, **options}
        reject_unknown("arun_batch", options, OPTION_NAMES)
        items = [self.parameters.complete(call.kwargs) for call in make_calls(self.program, batch_kwargs)]
        start = self._starter(items, RunSettings.of(options, items=len(items)), "journal" in options)
        states = [start(index) for index in range(len(items))]
        await asyncio.gather(*map(finished, states))
        return [result_of(state, return_exceptions) for state in states]

    def run_batch(
        self,
        batch_kwargs: Sequence[dict[str, Any] | Sequence[Any] | ProgramCall],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        **options: Any,
    ) -> list[Any] | Iterator[Any]:
        """Run the graph once for each item, as the program's `run_batch` does.

        No bodies run, so `num_threads` has no effect. What all items start with, arguments that they have in
        common included, is computed once.
        """
        options = {**self.program.run_options, **options}
        reject_unknown("run_batch", options, OPTION_NAMES)
        items = [self.parameters.complete(call.kwargs) for call in make_calls(self.program, batch_kwargs)]
        if not items:
            return iter(()) if generator_style else []
        start = self._starter(items, RunSettings.of(options, items=len(items)), "journal" in options)
        window = WINDOW if generator_style else len(items)
        results = in_order(len(items), start, window, return_exceptions)
        shown = counted(results, len(items), progress_bar)
        return iter(shown) if generator_style else list(shown)

    def _starter(
        self, items: list[dict[str, Any]], settings: RunSettings, journalled: bool
    ) -> Callable[[int], ProgramState]:
        plan, pinned = self._ready_plan(settings, journalled, shared_arguments(items))
        return lambda index: self._start(items[index], settings.for_item(index), plan, pinned)

    def _start(
        self, arguments: dict[str, Any], settings: RunSettings, plan: GraphPlan, pinned: PinnedPrefix | None
    ) -> ProgramState:
        stream: Stream | None = pinned.fork() if pinned else None
        executor = new_executor(self.program, ProgramCall((), arguments), settings, stream)
        context = contextvars.copy_context()
        pool = self._pool

        def hop(call: Callable[[], object]) -> None:
            pool.submit(context.copy().run, call)

        walk = PlanExecution(plan, executor, arguments, hop)
        walk.start()
        return CompiledState(executor, walk, self._tracer.ret_value)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Where runs continue when a value has arrived: not on the engine's thread."""
        return ThreadPoolExecutor(2, thread_name_prefix="sgl-compiled")

    # --- what is done once for a backend -------------------------------------------------------------------

    def _ready_plan(
        self, settings: RunSettings, journalled: bool, shared: Mapping[str, str] | None = None
    ) -> tuple[GraphPlan, PinnedPrefix | None]:
        """The plan for runs at a backend, and the pinned prefix that they start from."""
        self._check_template(settings.backend)
        if journalled or settings.adapted or self.program.num_api_spec_tokens:
            return without_pinned_prefix(self.plan), None
        self._make_ready(settings.backend)
        plan = self._plan_for(shared or {})
        return plan, self._pinned(settings.backend, plan, shared or {}) if plan.head else None

    def _plan_for(self, shared: Mapping[str, str]) -> GraphPlan:
        if not shared or HOIST not in self._pass_names:
            return self.plan
        return hoist_prefix(without_pinned_prefix(self.plan), shared)

    def _make_ready(self, backend: Backend) -> None:
        """Compile the grammars and compute the constant prefix, once for each backend."""
        with self._lock:
            if id(backend) in self._prepared:
                return
            if AHEAD in self._pass_names:
                prepare_grammars(self.plan, backend)
            self._prepared[id(backend)] = backend
        if self.plan.head and not self.program.num_api_spec_tokens:
            self._pinned(backend, self.plan, {})

    def _pinned(self, backend: Backend, plan: GraphPlan, shared: Mapping[str, str]) -> PinnedPrefix:
        """The prefix at a backend; of those with arguments in it, the one of the last batch is kept."""
        used = {part.name for step in plan.head for part in placeholders(step.node)}
        key = (id(backend), tuple(sorted((name, shared[name]) for name in used)))
        with self._lock:
            if key not in self._pins:
                if used:
                    self._pins = {kept: pin for kept, pin in self._pins.items() if not kept[1]}
                self._pins[key] = PinnedPrefix(backend, plan.head, shared)
            return self._pins[key]

    def _check_template(self, backend: Backend) -> None:
        traced, found = self._tracer.chat_template.name, backend.get_chat_template().name
        if self._tracer.recording.uses_template and traced != found:
            raise TraceError(
                f"{self.__name__} reads text with marks of its chat template and was compiled for {traced!r}, but "
                f"the backend's is {found!r}: use compile(backend=...)"
            )


def shared_arguments(items: list[dict[str, Any]]) -> dict[str, str]:
    """The texts that all items of a batch have in common."""
    if len(items) < 2:
        return {}
    first, *others = items
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, str) and all(item.get(name) == value for item in others)
    }


def in_order(count: int, start: Start, window: int, return_exceptions: bool) -> Iterator[Any]:
    """Finished runs 0 to count - 1, at most `window` ahead of the reader. Raises all errors but failures of nodes."""
    ahead: deque[ProgramState] = deque()
    for index in range(count):
        ahead.append(start(index))
        if len(ahead) >= window:
            yield result_of(ahead.popleft(), return_exceptions)
    while ahead:
        yield result_of(ahead.popleft(), return_exceptions)


def counted(results: Iterable[Any], total: int, shown: bool) -> Iterable[Any]:
    """The results, with a bar that counts them if that is wanted."""
    if not shown:
        return results
    from tqdm.auto import tqdm

    return tqdm(results, total=total)


async def finished(state: ProgramState) -> ProgramState:
    """The state, once its run is over. When the task is cancelled, so is the run."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    state.stream_executor.when_finished(lambda: loop.call_soon_threadsafe(over.set))
    try:
        await over.wait()
    except asyncio.CancelledError:
        state.cancel("the task that ran the program was cancelled")
        raise
    return state


def result_of(state: ProgramState, return_exceptions: bool) -> Any:
    """What a batch returns for a run, once it is over. Raises errors other than failures of nodes."""
    state.sync()
    if return_exceptions:
        return state.error() or state
    raised = state.stream_executor.body_error
    if raised is not None and not isinstance(raised, ProgramError):
        raise raised
    return state
