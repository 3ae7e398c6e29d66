"""What the names of a module mean: imports, functions, constants; and which functions use the language."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable

from .abstract_values import ANY, PLAIN, AbstractValue, ConstantValue, ImportedModule, PublicName, is_plain, one_of

ROOTS = ("sgl", "sglang")
_API_MODULES = ("api", "primitives", "function", "lang")
STAR_NAMES = (
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "image",
    "video",
    "separate_reasoning",
    "tools",
    "fields",
    "labels",
    "system",
    "user",
    "assistant",
    "tool",
    "system_begin",
    "system_end",
    "user_begin",
    "user_end",
    "assistant_begin",
    "assistant_end",
    "tool_begin",
    "tool_end",
    "plain",
    "special",
    "set_default_backend",
    "flush_cache",
)
_CHANGERS = {"append", "extend", "insert", "update", "pop", "remove", "clear", "add", "setdefault"}

Evaluate = Callable[[ast.AST], AbstractValue]


class ModuleNames:
    """The bindings of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self.bindings: dict[str, list[ast.AST | None]] = {}
        self.imports: dict[str, AbstractValue] = {}
        self.has_star_import = False
        self.assigned: set[str] = set()
        self.changed: set[str] = set()  # in place, or from inside a function
        self.shared: set[str] = set()  # by global or nonlocal: any call may change them
        self.awaited: set[int] = set()
        self.as_text: set[int] = set()  # what is put into text: by +, += and f-strings
        self._names_used: dict[str, set[str]] = {}
        self._collect(tree.body)
        self._walk(tree, ())
        self.language_functions = self._find_language_functions()

    @property
    def uses_sgl(self) -> bool:
        return any(map(_is_of_sgl, self.imports.values()))

    def value(self, name: str, evaluate: Evaluate) -> AbstractValue | None:
        """What a name of the module is, from inside a function. None: the module does not bind it."""
        bindings = self.bindings.get(name)
        if bindings is None:
            return self.imports.get(name)
        values = [ANY if node is None else evaluate(node) for node in bindings]
        if name in self.imports:
            values.append(self.imports[name])
        if name in self.changed:
            return PLAIN if all(_is_scalar(value) for value in values) else ANY
        return one_of(values) if len(values) == 1 or not all(map(is_plain, values)) else PLAIN

    def imported(self, node: ast.Import | ast.ImportFrom) -> dict[str, AbstractValue]:
        """The names that an import binds."""
        if isinstance(node, ast.Import):
            return dict(map(_module, node.names))
        found: dict[str, AbstractValue] = {}
        for alias in node.names:
            if alias.name == "*":
                if _root(node) in ROOTS:
                    found.update((word, PublicName(word)) for word in STAR_NAMES)
                else:
                    self.has_star_import = True
            else:
                found[alias.asname or alias.name] = _member(node, alias.name)
        return found

    def _collect(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.bindings.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self.bindings.setdefault(node.name, []).append(None)
            else:
                self._collect_statement(node)

    def _collect_statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._collect_target(target, node.value)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.AugAssign):
            self._collect_target(node.target, None)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None:
                    self._collect_target(item.optional_vars, None)
        for name in ("body", "orelse", "finalbody"):
            self._collect(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            self._collect(handler.body)

    def _collect_target(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.bindings.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self._collect_target(item, None)

    def _record(self, node: ast.AST) -> None:
        """What a node anywhere in the file says of the module's names."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.update(self.imported(node))
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self.assigned.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.assigned.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self.changed.update(node.names)
            self.shared.update(node.names)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self.as_text.update((id(node.left), id(node.right)))
        elif isinstance(node, ast.AugAssign | ast.FormattedValue):
            self.as_text.add(id(node.value))
        elif isinstance(node, ast.Await):
            self.awaited.add(id(node.value))
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
            stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if stored or (isinstance(node, ast.Attribute) and node.attr in _CHANGERS):
                self.changed.add(node.value.id)

    def _walk(self, node: ast.AST, owners: tuple[str, ...]) -> None:
        """Note every node, and for each function and constant of the file the names that it uses."""
        self._record(node)
        for owner in owners:
            if isinstance(node, ast.Name):
                self._names_used[owner].add(node.id)
            elif isinstance(node, ast.Attribute):
                self._names_used[owner].add(node.attr)
        for name in _defined(node):
            self._names_used.setdefault(name, set())
            owners = (*owners, name)
        for child in ast.iter_child_nodes(node):
            self._walk(child, owners)

    def _find_language_functions(self) -> set[str]:
        """What uses names of the language, or functions that do; by name."""
        language_functions = {name for name, value in self.imports.items() if _is_of_sgl(value)}
        while more := {
            name
            for name, used in self._names_used.items()
            if name not in language_functions and used & language_functions
        }:
            language_functions |= more
        return language_functions


def _is_of_sgl(value: AbstractValue) -> bool:
    return isinstance(value, PublicName) or (isinstance(value, ImportedModule) and value.is_sgl)


def _defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    return [item.id for item in node.targets if isinstance(item, ast.Name)] if isinstance(node, ast.Assign) else []


def _module(alias: ast.alias) -> tuple[str, AbstractValue]:
    root = alias.name.partition(".")[0]
    if alias.asname is None:
        return root, ImportedModule(root, root in ROOTS)
    return alias.asname, ImportedModule(alias.name, alias.name in ROOTS)


def _root(node: ast.ImportFrom) -> str:
    return "" if node.level else (node.module or "").partition(".")[0]


def _member(node: ast.ImportFrom, name: str) -> AbstractValue:
    module = node.module or ""
    if _root(node) in ROOTS and (module in ROOTS or module.rpartition(".")[2] in _API_MODULES):
        return PublicName(name)
    return ImportedModule(f"{'.' * node.level}{module}.{name}")


def _is_scalar(value: AbstractValue) -> bool:
    return isinstance(value, ConstantValue) and isinstance(value.value, str | int | float | bool | type(None))


def is_stdlib(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names
