"""`sgl doctor`: what this machine can use, what the engine would choose, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from packaging.requirements import Requirement

_EXTRAS = ("cuda", "server", "otel", "openai", "anthropic", "litellm", "documents")


class MissingRequirement(Exception):
    """Something without which programs cannot run here; the text says what to do."""


def add_parser(commands: Any) -> None:
    """Add `doctor` to the command line."""
    parser = commands.add_parser("doctor", help="show what this machine can use to run programs, and what is missing")
    parser.set_defaults(command=lambda options: doctor())


def doctor() -> int:
    """Print what the parts of sgl find here. Status 1 if programs cannot run."""
    ailments = 0
    for name, check in CHECKS.items():
        try:
            for line in check():
                print(f"{name:<10} {line}")
        except Exception as error:
            ailments += 1
            message = str(error) if isinstance(error, MissingRequirement) else f"{type(error).__name__}: {error}"
            print(f"{name:<10} PROBLEM: {message}")
    print(_verdict(ailments))
    return 1 if ailments else 0


def _verdict(ailments: int) -> str:
    if ailments:
        return f"\nPrograms cannot run here yet: {ailments} problem{'s' if ailments > 1 else ''} above."
    return "\nPrograms can run here."


def _python() -> Iterator[str]:
    import platform

    from sgl import __version__

    yield f"sgl {__version__} at {Path(__file__).parents[1]}"
    yield f"Python {platform.python_version()} on {platform.platform()}"


def _packages() -> Iterator[str]:
    if not _declared():
        yield "sgl is not installed as a package here, so its requirements are not checked"
    wrong = []
    for requirement in _requirements(None):
        have = _version(requirement.name)
        if have is None or not requirement.specifier.contains(have, prereleases=True):
            wrong.append(f"{requirement} is required, {f'{have} is' if have else 'it is not'} installed")
        else:
            yield f"{requirement.name} {have}"
    if wrong:
        raise MissingRequirement("; ".join(wrong) + ". Install sgl again: pip install .")


def _extras() -> Iterator[str]:
    for extra in _EXTRAS:
        needed = list(_requirements(extra))
        missing = [r.name for r in needed if (have := _version(r.name)) is None or not r.specifier.contains(have, True)]
        if missing:
            yield f"{extra}: needs {', '.join(missing)}: pip install 'sgl[{extra}]'"
        elif needed:
            yield f"{extra}: {', '.join(f'{r.name} {_version(r.name)}' for r in needed)}"


def _declared() -> list[str]:
    import importlib.metadata

    try:
        return importlib.metadata.requires("sgl") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _requirements(extra: str | None) -> Iterator[Requirement]:
    """What sgl needs here for an extra, or without any."""
    from packaging.requirements import Requirement

    for text in _declared():
        requirement = Requirement(text)
        marker = requirement.marker
        plain = marker is None or marker.evaluate({"extra": ""})
        if plain if extra is None else (not plain and marker is not None and marker.evaluate({"extra": extra})):
            yield requirement


def _version(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> Iterator[str]:
    from sgl.runtime.executor.device_choice import choose_device

    yield from choose_device().reasons


def _gpus() -> Iterator[str]:
    from sgl.runtime.executor.ranks.gpu_topology import describe_links

    yield from describe_links()


def _memory() -> Iterator[str]:
    total, free = (os.sysconf("SC_PAGE_SIZE") * os.sysconf(name) / 1e9 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    yield f"{total:.1f} GB, {free:.1f} GB free"


def _kernels() -> Iterator[str]:
    from sgl.grammars import core_name
    from sgl.runtime.layers import cpu_kernels

    slow = "missing: correct but slower; install sgl again with a C compiler"
    yield f"masks in C: {'in use' if core_name() == 'C' else slow}"
    yield f"decoding on the CPU in C: {_used(cpu_kernels) if cpu_kernels.kernels else slow}"


def _used(cpu: ModuleType) -> str:
    return "in use, products by " + ", ".join(
        f"{cpu.isa_variant(dtype)} ({str(dtype).removeprefix('torch.')})" for dtype in cpu.KINDS
    )


def _cache() -> Iterator[str]:
    from sgl.common.file_cache import caches_are_off
    from sgl.runtime.loading.packed_cache.packed_cache_folder import packed_cache

    try:
        cache = packed_cache()
        entries = cache.entries()
    except OSError as error:
        yield f"packed weights are not kept: {error}"
        return
    size = sum(entry.bytes for entry in entries)
    off = "; off by SGL_CACHE=0" if caches_are_off() else ""
    yield f"packed weights in {cache.folder}: {len(entries)} files, {size / 1e9:.2f} of {cache.most / 1e9:g} GB{off}"


def _model() -> Iterator[str]:
    from sgl.runtime.loading.model_files.locate_model import BUNDLED

    weights = sorted(BUNDLED.glob("*.safetensors"))
    if not weights or not (BUNDLED / "config.json").is_file():
        raise MissingRequirement(f"the bundled model is not in {BUNDLED}; give a model: sgl.Engine('path/to/model')")
    size = sum(file.stat().st_size for file in weights)
    yield f"the bundled model is in {BUNDLED} ({size / 1e6:.1f} MB of weights)"
    yield from _layers(BUNDLED)


def _layers(model: Path) -> Iterator[str]:
    from sgl.runtime.executor.expected_device import expected_device
    from sgl.runtime.loading import load_config
    from sgl.runtime.models.describe.family_listing import executors_of

    choice = expected_device()
    runs = executors_of(load_config(model), choice.name, choice.dtype)
    for ran in dict.fromkeys(runs):
        yield (
            f"{runs.count(ran)} of its {len(runs)} layers use the {ran.by} "
            f"executor{f': {ran.why}' if ran.why else ''}; for other models use `sgl models`"
        )


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    "python": _python,
    "packages": _packages,
    "extras": _extras,
    "device": _device,
    "cards": _gpus,
    "memory": _memory,
    "kernels": _kernels,
    "cache": _cache,
    "model": _model,
}
