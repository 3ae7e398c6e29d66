"""The type parameters of programs and states. Type checkers take what is left out as anything: `SglFunction` is
`SglFunction[..., Any]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    Parameters = ParamSpec("Parameters", default=...)  # of a program, without its state
    Returned_co = TypeVar("Returned_co", default=Any, covariant=True)  # by its body
else:  # before Python 3.13 only typing_extensions knows defaults, which nothing needs when it runs
    from typing import ParamSpec, TypeVar

    Parameters = ParamSpec("Parameters")
    Returned_co = TypeVar("Returned_co", covariant=True)
