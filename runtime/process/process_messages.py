"""What the two processes say to each other: pickles of our own types.

To the engine go Open, Queue, Abort, Ask and Spoil; back come Answers. Operations travel as their class and the
attributes of which a copy is made, grammars as recipes, errors without their tracebacks. The engine's process does not
know its caller's modules: nothing made of their classes is sent there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from sgl.common.child_process.serialized_error import SerializedError
from sgl.grammars import Vocabulary

from ..build.engine_config import DeviceDefaults, EngineConfig
from ..errors import ConfigError, RuntimeFailure
from ..sequences.generation import Chunk
from ..sequences.ops.generate_op import Generate
from ..sequences.ops.sequence_ops import Fork
from ..sequences.running_generation import WRONG_VOCABULARY
from ..sequences.sequence_options import SequenceOptions
from ..sequences.sequence_state import SequenceOp

MESSAGE = 0  # the number of every message in the channel: an answer holds that of its question
serialized = partial(SerializedError.of, otherwise=RuntimeFailure)
MESSAGE = 0  # the number of every message in the channel: an answer holds that of its question
serialized = partial(SerializedError.of, otherwise=RuntimeFailure)


class StartMessage(NamedTuple):
    """The first message to a new process."""

    path: str
    options: EngineConfig


class ReadyMessage(NamedTuple):
    """The answer of number 0: the engine runs. info: see `Engine.info`."""

    config: DeviceDefaults
    info: dict[str, Any]


class OpenSequence(NamedTuple):
    sequence: int
    terms: SequenceOptions


class QueueOp(NamedTuple):
    """An operation for a sequence. number: what the answer will carry; None: no caller waits for one.

    arguments: packed by themselves, so that what cannot be unpacked fails its operation alone.
    started: `time.perf_counter()` seconds, a clock that all processes of a machine share.
    """

    number: int | None
    sequence: int
    kind: type[SequenceOp]
    arguments: bytes
    started: float


class AbortSequence(NamedTuple):
    sequence: int


class AskCore(NamedTuple):
    """A question to the core. at_once: it is answered in the middle of a step."""

    number: int
    name: str
    arguments: tuple[Any, ...]
    at_once: bool


class FailGeneration(NamedTuple):
    """The receiver of a generation's chunks raised an error: the generation is to fail with it."""

    number: int
    error: SerializedError


class ProcessAnswer(NamedTuple):
    """value: a chunk's fields, a result, or a `SerializedError`."""

    number: int
    kind: int
    value: Any


ADAPT = "adapt"  # the name of a question for `EngineCore.adapt`
CHUNK, DONE, FAILED = range(3)


# what operations and chunks are made of

chunk_fields: Callable[[Chunk], tuple[Any, ...]] = attrgetter(*[f.name for f in dataclasses.fields(Chunk)])


def arguments_of(op: SequenceOp, vocabulary: Vocabulary) -> tuple[Any, ...]:
    """What a copy of the operation is made of.

    Of a Generate: parameters, recipe or error or None, whether it streams.
    """
    if isinstance(op, Generate):
        return op.params, op.refusal or _recipe(op.grammar, vocabulary), op.on_chunk is not None
    if isinstance(op, Fork):
        return [child.id for child in op.children], [child.terms.adapter for child in op.children]
    return tuple(getattr(op, name) for name in op.made_of)


def _recipe(grammar: Any, vocabulary: Vocabulary) -> Any:
    """A grammar that cannot be used is an error, which the generation raises in its turn."""
    if grammar is None:
        return None
    if grammar.vocabulary.base is not vocabulary:
        return ConfigError(WRONG_VOCABULARY)
    return grammar.recipe or ConfigError(
        "a grammar for an engine in a separate process must come from a compile_ function of sgl.grammars, "
        "which knows how to make it there again"
    )
