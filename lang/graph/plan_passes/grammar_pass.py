"""Pass: the grammars of constrained gens are compiled before the first run asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from ...backend import Backend
from ...errors import ProgramError, node_failure
from ...nodes.ir import SglExpr, SglGen, SglSeparateReasoning, flatten
from ...sampling.options import CONSTRAINTS, DEFAULTS, SamplingOptions
from ..graph_plan import GraphPlan
from ..trace_steps import AppendStep


def constrained(plan: GraphPlan) -> list[tuple[AppendStep, SglGen]]:
    """The gens whose text has to follow a grammar."""
    gens = [(step, gen) for step in plan.appended() for gen in _gens(step.node)]
    return [(step, gen) for step, gen in gens if gen.reading is not None or _has_grammar(gen.sampling_params)]


def prepare_grammars(plan: GraphPlan, backend: Backend) -> None:
    """Compile all grammars for a backend. Raises ProgramError with the place of a gen whose grammar is wrong."""
    for step, gen in constrained(plan):
        options = gen.sampling_params.over(DEFAULTS)
        if gen.reading is not None and gen.reading.copies and options.copied_from is None:
            continue  # the text is known when the gen runs
        try:
            if gen.reading is not None:
                options = gen.reading.constrain(options, backend)
            backend.prepare(options)
        except ProgramError:
            raise
        except Exception as error:
            raise node_failure(gen, error, step.where) from error


def _gens(node: SglExpr) -> Iterator[SglGen]:
    if isinstance(node, SglSeparateReasoning):
        for part in flatten(node.expr):
            yield from _gens(part)
    elif isinstance(node, SglGen):
        yield node


def _has_grammar(options: SamplingOptions) -> bool:
    return any(getattr(options, name) is not None for name in CONSTRAINTS)
