"""Triton's interpreter without what it computes again or for nothing: the
same results in less than half of the time.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import Any


def quicken() -> None:
    """Call it when Triton's interpreter may have been imported; parts that another version lacks stay as they are."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or hasattr(interpreter, "quickened"):
        return
    interpreter.quickened = True
    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = _patched_once(interpreter)
    if hasattr(interpreter, "_patch_attr"):
        interpreter._patch_attr = _given_as_they_are(interpreter)
    language = interpreter.tl
    if all(hasattr(language.core, name) for name in ("block_type", "tensor", "tuple", "constexpr")):
        _shapes_made_once(language.core)
        semantic = type(interpreter.interpreter_semantic)
        semantic.broadcast_impl_value = _alike_left_alone(semantic.broadcast_impl_value)
    if hasattr(interpreter, "_get_np_dtype"):
        interpreter._get_np_dtype = _looked_up_once(interpreter._get_np_dtype)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # without it no overflow is reported
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patched_once(interpreter: Any) -> Callable[[Any], Any]:
    """Before every launch and call it puts its functions into the modules that the kernel sees, and takes most of them
    back.

    Here they stay: a process that interprets compiles nothing.
    """
    language = interpreter.tl
    everything = types.SimpleNamespace(__globals__={"tl": language, "core": language.core})
    put = functools.cache(functools.partial(interpreter._patch_lang, everything))

    def once(fn: Any) -> Any:
        put()
        return interpreter._LangPatchScope()

    return once


def _given_as_they_are(interpreter: Any) -> Callable[..., None]:
    """Of most calls there are no keywords to look through."""

    def patch(thing: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        def called(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return member(*args, **kwargs)

        scope.set_attr(thing, name, called)

    return patch


def _shapes_made_once(core: Any) -> None:
    """Each result has a type with a shape, and a shape of constants: they are the same for all of the same sizes."""
    made: dict[Any, Any] = {}
    names: dict[Any, str] = {}
    whole_type, whole_equal = core.block_type.__init__, core.tuple.__eq__

    def begin_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        if (sizes, element_ty.name) not in names:
            whole_type(self, element_ty, shape)
            self.shape, self.numel = made.setdefault(sizes, (self.shape, self.numel))
            names[sizes, element_ty.name] = self.name
            return
        self.element_ty, self.name, (self.shape, self.numel) = element_ty, names[sizes, element_ty.name], made[sizes]

    nothing = core.tuple([]), core.constexpr(1)
    constants: dict[int, Any] = {}  # by the shape of a type, which stays

    def begin_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        found = nothing
        if type.is_block() and (found := constants.get(id(type.shape))) is None:
            shape = core.tuple([core.constexpr(size) for size in type.shape])
            found = shape, core.constexpr(type.numel), type.shape
            constants[id(type.shape)] = found
        self.shape, self.numel = found[:2]

    def equal(self: Any, other: Any) -> Any:
        if type(other) is list and all(type(size) is int for size in other):
            return core.constexpr(self.values == other)
        return whole_equal(self, other)

    core.block_type.__init__, core.tensor.__init__, core.tuple.__eq__ = begin_type, begin_tensor, equal


def _alike_left_alone(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        if one.is_block() and other.is_block() and one.shape is other.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return broadcast_impl_value


def _looked_up_once(numpy_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    found: dict[str, Any] = {}

    def known(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in found:
            found[name] = numpy_dtype(dtype)
        return found[name]

    return known
