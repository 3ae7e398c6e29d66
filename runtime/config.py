"""The engine's options, checked by name and by value."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, fields
from typing import Any

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of `Engine`.

    dtype        "auto" (measured), "float32", "bfloat16" or "float16"
    device       "auto", "cpu", "cuda", "cuda:1" ...
    threads      CPU threads; None: the usable physical cores
    context      longest sequence in tokens; None: what the model was made for
    page_size    token slots of a KV page
    kv_tokens    size of the KV pool in tokens; None: from kv_memory
    kv_memory    size of the KV pool, bytes or text such as "2GB"; None: a share of what is free
    step_tokens  token budget of one step
    max_running  sequences that are computed in the same step
    attention    "auto" or the name of a backend
    jump_forward append what a grammar forces without sampling it
    json_options how JSON is written and read from schemas, see `sgl.grammars.SchemaOptions`; None: the defaults
    dummy        random weights of the model's shape: nothing but its config.json is read
    seed         of the dummy weights, and of the row of seeds that generations without one draw from
    poison_freed fill freed pages with NaN, so that a stale read is loud (for tests)
    """

    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    page_size: int = 1
    kv_tokens: int | None = None
    kv_memory: int | str | None = None
    step_tokens: int = 1024
    max_running: int = 64
    attention: str = "auto"
    jump_forward: bool = True
    json_options: dict[str, Any] | None = None
    dummy: bool = False
    seed: int | None = None
    poison_freed: bool = False

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(names)}"
                raise ConfigError(f"Engine has no option {name!r}; {hint}")
        config = cls(**options)
        config.validate()
        return config

    def validate(self) -> None:
        for name in ("page_size", "step_tokens", "max_running", "threads", "context", "kv_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"Engine({name}={value!r}): must be a positive whole number")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ConfigError(f"Engine(dtype={self.dtype!r}): must be auto, float32, bfloat16 or float16")
        if self.kv_memory is not None:
            parse_memory(self.kv_memory)
        self._check_json_options()

    def _check_json_options(self) -> None:
        from sgl.grammars import GrammarError, SchemaOptions

        try:
            SchemaOptions.of(self.json_options or {})
        except GrammarError as error:
            raise ConfigError(f"Engine(json_options={self.json_options!r}): {error}") from error


UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_memory(value: int | str) -> int:
    """Bytes of `2000000`, `"2GB"`, `"512MiB"`."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMG]?I?)B?\s*", value.upper())
    if not match or match[2] not in UNITS:
        raise ConfigError(f"kv_memory={value!r} is no size; write bytes or a text such as '2GB' or '512MiB'")
    return int(float(match[1]) * UNITS[match[2]])


def free_memory() -> int:
    """Bytes of main memory that this process may still take, the control group's limit included."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as lines:
            fields_ = dict(line.split(":", 1) for line in lines)
        free = int(fields_["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit) as a, open(used) as b:
                free = min(free, int(a.read()) - int(b.read()))
        except (OSError, ValueError):
            pass
    return max(0, free)
