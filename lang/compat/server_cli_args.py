"""The command line of a server, as scripts that start one declare it: `ServerArgs.add_cli_args(parser)`."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

# all are taken; server_args.py says which of them mean something here
_KINDS = {
    "text": (
        "model_path tokenizer_path tokenizer_mode load_format dtype kv_cache_dtype quantization "
        "quantization_param_path device served_model_name chat_template completion_template revision host "
        "schedule_policy log_level log_level_http api_key attention_backend sampling_backend grammar_backend "
        "json_model_override_args reasoning_parser tool_call_parser dist_init_addr download_dir file_storage_path "
        "load_balance_method speculative_algorithm speculative_draft_model_path moe_runner_backend "
        "prefill_attention_backend decode_attention_backend mm_attention_backend model_impl preferred_sampling_params"
    ),
    "count": (
        "context_length port nccl_port max_running_requests max_total_tokens chunked_prefill_size max_prefill_tokens "
        "tp_size pp_size dp_size ep_size stream_interval random_seed cuda_graph_max_bs torch_compile_max_bs page_size "
        "base_gpu_id gpu_id_step nnodes node_rank num_continuous_decode_steps speculative_num_steps "
        "speculative_eagle_topk speculative_num_draft_tokens max_loras_per_batch decode_log_interval"
    ),
    "number": "mem_fraction_static schedule_conservativeness watchdog_timeout",
    "switch": (
        "trust_remote_code is_embedding skip_tokenizer_init skip_server_warmup enable_multimodal enable_metrics "
        "log_requests show_time_cost disable_radix_cache disable_cuda_graph disable_cuda_graph_padding "
        "disable_overlap_schedule disable_custom_all_reduce disable_outlines_disk_cache disable_mla "
        "enable_mixed_chunk enable_dp_attention enable_torch_compile enable_p2p_check enable_nan_detection "
        "enable_memory_saver enable_hierarchical_cache enable_deterministic_inference enable_cache_report "
        "enable_return_hidden_states triton_attention_reduce_in_fp32 allow_auto_truncate"
    ),
    "list": "lora_paths cuda_graph_bs",
}
KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_ABOUT: dict[str, dict[str, Any]] = {
    "text": {"type": str},
    "count": {"type": int},
    "number": {"type": float},
    "switch": {"action": "store_true"},
    "list": {"nargs": "*"},
}
_OTHER_FLAGS = {
    "model_path": ("--model",),
    "dist_init_addr": ("--nccl-init-addr",),
    "tp_size": ("--tensor-parallel-size", "--tp"),
    "pp_size": ("--pipeline-parallel-size", "--pp"),
    "dp_size": ("--data-parallel-size", "--dp"),
    "ep_size": ("--expert-parallel-size", "--ep"),
}


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a server.

    None is required, as none is without a meaning here; what the parser has stays.
    """
    for name, kind in KIND_OF.items():
        _add(parser, name, **_ABOUT[kind])


def _add(parser: argparse.ArgumentParser, name: str, **about: Any) -> None:
    flag = f"--{name.replace('_', '-')}"
    for flags in ((flag, *_OTHER_FLAGS.get(name, ())), (flag,)):
        with contextlib.suppress(argparse.ArgumentError):  # the script has one of that name
            parser.add_argument(*flags, dest=name, **{"default": None, **about})
            return


def given_in(args: Any) -> dict[str, Any]:
    """The options of a server that a parsed command line names."""
    found = {name: getattr(args, name, None) for name in KIND_OF}
    return {name: value for name, value in found.items() if value is not None and value is not False}
