"""The options of a server, as programs give them, and what they mean for an embedded engine."""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import field, make_dataclass
from typing import Any

from ..places.source_location import SourceLocation, caller_place
from .server_cli_args import KIND_OF, add_cli_args, given_in
from .sglang_alias_settings import settings

# option of a server -> option of sgl.Engine
MEANINGS = {
    "context_length": "context",
    "max_total_tokens": "kv_tokens",
    "max_running_requests": "max_running",
    "chunked_prefill_size": "step_tokens",
    "page_size": "page_size",
    "dtype": "dtype",
    "device": "device",
    "random_seed": "seed",
}
SPREAD = {
    "tp_size": "tensor_parallel",
    "pp_size": "pipeline_parallel",
    "dp_size": "replicas",
}  # where there are as many GPUs
DTYPES = {"half": "float16", "float": "float32"}
# not needed by an engine in this process, ignored without a warning
_QUIET = (
    "model_path tokenizer_path chat_template served_model_name log_level log_level_http host port trust_remote_code "
    "load_format launch_timeout api_key show_time_cost disable_radix_cache disable_cuda_graph cuda_graph_max_bs "
    "mem_fraction_static skip_tokenizer_init is_embedding enable_metrics download_dir watchdog_timeout "
    "schedule_policy attention_backend sampling_backend grammar_backend reasoning_parser tool_call_parser nccl_port "
    "dist_init_addr node_rank nnodes"
)
QUIET = frozenset(_QUIET.split())
OF_THE_MODEL = frozenset({"context", "dtype", "kv_tokens"})


# an option that was not given is None or False, as on a command line that does not name it
_Options: Any = make_dataclass(
    "_Options",
    [(name, Any, field(default=False if kind == "switch" else None)) for name, kind in KIND_OF.items()],
    init=False,
    repr=False,
    eq=False,
)


class ServerArgs(_Options):
    """`ServerArgs(model_path=..., context_length=...)`: any option of a server is taken and kept.

    Those without a meaning for the embedded engine are named in one warning, once for each line of a program.
    A dataclass: `dataclasses.asdict(args)` has every option of a command line, and others that were given.
    """

    def __init__(self, model_path: str | None = None, **options: Any) -> None:
        self.model_path = model_path
        self.tokenizer_path = options.pop("tokenizer_path", None) or model_path
        self.chat_template = options.pop("chat_template", None)
        self._options = options
        for name, value in options.items():
            setattr(self, name, value)
        others: Any = make_dataclass("_Others", [(name, Any) for name in options if name not in KIND_OF])
        self.__dict__["__dataclass_fields__"] = {**_Options.__dataclass_fields__, **others.__dataclass_fields__}
        self._warn()

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Declare the options of a server on a script's parser; `from_cli_args` reads what it finds."""
        add_cli_args(parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        return cls(**given_in(args))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ServerArgs has no option {name!r}")

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"ServerArgs(model_path={self.model_path!r}{given})"

    def engine_options(self, replaced: bool) -> dict[str, Any]:
        """Options of sgl.Engine; without those of the model where another was loaded than asked for."""
        found = {
            MEANINGS[name]: value
            for name, value in self._options.items()
            if name in MEANINGS and value is not None and value != "auto" and not _off(name, value)
        }
        if "dtype" in found:
            found["dtype"] = DTYPES.get(found["dtype"], found["dtype"])
        found |= {} if replaced else self._parallel_options()
        if self._options.get("load_format") == "dummy" and not replaced:
            found["dummy"] = True
        elif self._options.get("load_format") == "pt" and not replaced:
            found["load_format"] = "pt"
        return {name: value for name, value in found.items() if not (replaced and name in OF_THE_MODEL)}

    def _parallel_options(self) -> dict[str, Any]:
        """How many GPUs the model uses: as requested, where there are that many, else one."""
        asked = {name: value for name in SPREAD if isinstance(value := self._options.get(name), int) and value > 1}
        if self._options.get("enable_dp_attention"):  # not whole engines then
            asked.pop("dp_size", None)
        if not asked or self._options.get("device") == "cpu" or math.prod(asked.values()) > _gpu_count():
            return {}
        whole = {"expert_parallel": True} if "tp_size" in asked and (self._options.get("ep_size") or 1) > 1 else {}
        return {SPREAD[name]: value for name, value in asked.items()} | whole

    def _warn(self) -> None:
        spread = self._parallel_options()
        idle = [
            f"{name}={value!r}"
            for name, value in self._options.items()
            if not (
                name in MEANINGS
                or name in QUIET
                or name.startswith("disable_")
                or SPREAD.get(name) in spread
                or (name == "ep_size" and "expert_parallel" in spread)
            )
            and value not in (None, False, 1, "auto")
        ]
        if idle:
            message = f"no effect on the embedded engine: {', '.join(idle)}"
            where = caller_place() or SourceLocation("<sgl>", 0)
            if settings.is_new(f"{where}: {message}"):
                warnings.warn_explicit(message, UserWarning, where.file, where.line)


def _gpu_count() -> int:
    from sgl.runtime.executor.ranks.gpu_topology import list_gpus

    return len(list_gpus())


def _off(name: str, value: Any) -> bool:
    """Whether a number says "as you like": servers write -1 for that."""
    return name == "chunked_prefill_size" and value < 1
