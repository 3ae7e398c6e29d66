"""Looks through a pickle before it is read: what it would take to read it must be in proportion to its bytes."""

from __future__ import annotations

import pickletools
from typing import IO, Any

MOST_STEPS = 400_000  # some twenty for each tensor
MOST_IN_TUPLE = 10_000  # parts of a tuple, those of the tuples in it among them: as a key, it is hashed by all of them
AMPLIFYING = {
    "builtins bytearray",
    "__builtin__ bytearray",
    "torch.storage _load_from_bytes",
}  # a number makes memory of that size; a pickle in a pickle
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def require_few_steps(stream: IO[bytes], most: int) -> int:
    """Of one pickle, at the end of which the stream is left; returns its steps, `most` at most. Raises
    ValueError for what is too much, and for no pickle.
    """
    stack, memo, steps = _PickleStack(), dict[Any, int](), 0
    for steps, (operation, argument, _) in enumerate(pickletools.genops(stream), 1):
        if steps > most:
            raise ValueError(f"it takes more than {most:,} steps")
        name = operation.name
        if name == "GLOBAL" and argument in AMPLIFYING:
            raise ValueError(f"it would run {argument.replace(' ', '.')}")
        if name in ("BINGET", "LONG_BINGET", "GET"):
            stack.push(memo.get(argument, 1))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack.top
        elif name == "MEMOIZE":
            memo[len(memo)] = stack.top
        elif name in _TUPLES:
            stack.push(1 + stack.popped(_TUPLES[name]))
        elif name == "TUPLE":
            stack.push(1 + stack.popped_to_mark())
        else:
            stack.apply(operation)
        if stack.top > MOST_IN_TUPLE:
            raise ValueError(f"it has a tuple of more than {MOST_IN_TUPLE:,} parts")
    return steps


class _PickleStack:
    """The unpickler's: of each value how many parts a tuple has, of all others 1; 0 for a mark."""

    def __init__(self) -> None:
        self._values: list[int] = []

    @property
    def top(self) -> int:
        return self._values[-1] if self._values else 1

    def push(self, parts: int) -> None:
        self._values.append(parts)

    def popped(self, count: int) -> int:
        if count > len(self._values):
            raise ValueError("it takes a value where there is none")
        taken = [self._values.pop() for _ in range(count)]
        return sum(taken)

    def popped_to_mark(self) -> int:
        found = 0
        while self._values and (parts := self._values.pop()):
            found += parts
        return found

    def apply(self, operation: Any) -> None:
        """Any other operation, by what it says it takes and leaves."""
        before = operation.stack_before
        if pickletools.markobject in before:
            self.popped_to_mark()
            before = before[: before.index(pickletools.markobject)]
        self.popped(len(before))
        self._values += [0 if kind is pickletools.markobject else 1 for kind in operation.stack_after]
