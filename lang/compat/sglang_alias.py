"""Puts a package `sglang` in front of the import system: real modules whose names are our objects."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..errors import LanguageError
from .sglang_alias_settings import configure, settings

ROOT = "sglang"


class AliasError(LanguageError, ImportError):
    """The alias would hide an sglang that is really installed."""


class AliasModule(ModuleType):
    """A module of the alias. Names are looked up in our modules when they are first used."""

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = _find(self.__name__, name)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_public_names(self.__name__)})


class AliasFinder(MetaPathFinder, Loader):
    """Finds and makes the modules of the alias, and says which ones it does not have."""

    def __init__(self) -> None:
        from .sglang_module_map import packages

        self._names = packages()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        if fullname not in self._names:
            raise ModuleNotFoundError(
                f"no module named {fullname!r}: sgl stands in for sglang here, with its language only",
                name=fullname,
            )
        return ModuleSpec(fullname, self, origin="sgl.lang.compat", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == ROOT:
            # The package has an object and a module of that name; programs mean the object.
            import_module(f"{ROOT}.global_config")
            module.global_config = _find(ROOT, "global_config")  # type: ignore[attr-defined]


def install(force: bool = False, local: bool = False) -> None:
    """Make `import sglang` import sgl in this process. `uninstall()` undoes it. Safe to call twice.

    `local`: replace unreachable endpoints, and servers that the program would launch, by the embedded engine,
    like `sgl run`. Raises AliasError if a real sglang is installed or loaded, unless `force`.
    """
    if local:
        settings.local = True
    if installed():
        return
    if not force and (where := _real()):
        raise AliasError(
            f"sglang itself is installed ({where}): use it, or hide it with sgl.compat.install(force=True) "
            "or sgl run --force"
        )
    finder = AliasFinder()
    finder.hidden = _take_modules()  # type: ignore[attr-defined]
    sys.meta_path.insert(0, finder)


def uninstall() -> None:
    """Remove the alias; a real sglang that it hid is visible again."""
    configure(local=False, url=None, model=None)
    for finder in [finder for finder in sys.meta_path if isinstance(finder, AliasFinder)]:
        sys.meta_path.remove(finder)
        _take_modules()
        sys.modules.update(finder.hidden)  # type: ignore[attr-defined]


def installed() -> bool:
    return any(isinstance(finder, AliasFinder) for finder in sys.meta_path)


def _real() -> str | None:
    """Where the real package is, None if there is none."""
    module = sys.modules.get(ROOT)
    spec = module.__spec__ if module is not None else importlib.util.find_spec(ROOT)
    if module is None and spec is None:
        return None
    return str(getattr(spec, "origin", None) or getattr(module, "__file__", None) or "imported already")


def _take_modules() -> dict[str, ModuleType]:
    """The loaded modules of that name, which are forgotten."""
    names = [name for name in sys.modules if name == ROOT or name.startswith(f"{ROOT}.")]
    return {name: sys.modules.pop(name) for name in names}


def _find(module: str, name: str) -> Any:
    """The object that `name` means in a module of the alias. AttributeError if there is none."""
    from .sglang_module_map import HOMES, packages

    if name == "__all__":
        return list(_public_names(module))
    private = name.startswith("_") and name != "__version__"
    for home in () if private else HOMES.get(module, ()):
        found = getattr(import_module(home), name, None)
        if found is not None:
            return found
    if f"{module}.{name}" in packages():
        return import_module(f"{module}.{name}")
    raise AttributeError(f"module {module!r} has no attribute {name!r} (sgl stands in for sglang here)")


def _public_names(module: str) -> Sequence[str]:
    from .sglang_module_map import HOMES, TOP

    if module == ROOT:
        return TOP
    return sorted({name for home in HOMES.get(module, ()) for name in _names_of(import_module(home))})


def _names_of(home: ModuleType) -> Iterator[str]:
    yield from getattr(home, "__all__", None) or (name for name in vars(home) if not name.startswith("_"))
