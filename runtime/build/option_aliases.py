"""Options and values of vLLM's LLM() and SGLang's Engine() that have no other name here, but another answer."""

from __future__ import annotations

from typing import Any

# their name -> a sentence
SENTENCES = {
    "quantization": "a quantised checkpoint is read as it is stored; to quantise another while loading, give weights=, "
    "such as weights='int8' or 'int4'",
    "torchao_config": "to quantise while loading, give weights=, such as weights='int8' or 'int4'",
    "load_in_8bit": "give weights='int8'",
    "load_in_4bit": "give weights='int4'",
    "gpu_memory_utilization": "give memory=, the share of the free memory that weights, activations and KV may use "
    "together",
    "mem_fraction_static": "give memory=, the share of the free memory that weights, activations and KV may use "
    "together",
    "kv_cache_dtype": "give kv_dtype=, 'auto' or 'fp8'",
    "torch_dtype": "give dtype=, 'auto', 'float32', 'bfloat16' or 'float16'",
    "precision": "give dtype=, 'auto', 'float32', 'bfloat16' or 'float16'",
    "device_map": "give device=, 'auto', 'cpu', 'cuda' or 'cuda:1', and tensor_parallel= for several GPUs",
    "n_gpu_layers": "give device='cuda' for all layers on the GPU, and expert_memory='host' for experts in main memory",
    "tokenizer_mode": "the tokenizer is read by its files, without code of theirs; leave it out",
    "skip_tokenizer_init": "the tokenizer is always there, and token ids are taken too; leave it out",
    "served_model_name": "an engine in this process needs none; a server has it: sgl serve MODEL --served-name NAME",
    "cpu_offload_gb": "of mixtures of experts give expert_memory='host' or bytes on the device; other weights are "
    "never offloaded",
    "speculative_config": "give speculation='auto', and draft= for a draft model or head",
    "speculative_algorithm": "give speculation='auto', and draft= for a draft model or head",
    "num_speculative_tokens": "give speculation={'most': NUMBER}",
    "speculative_num_steps": "give speculation={'most': NUMBER}",
    "speculative_num_draft_tokens": "give speculation={'most': NUMBER}",
    "host": "an engine has no port; a server has one: sgl serve MODEL --host HOST --port PORT",
    "port": "an engine has no port; a server has one: sgl serve MODEL --host HOST --port PORT",
    "api_key": "an engine has no port; a server has one: sgl serve MODEL --help",
    "revision": "name it with the model: 'organisation/name@revision'",
    "download_dir": "models are stored in the Hugging Face cache: set HF_HOME, or give a local directory as the model",
    "enable_lora": "adapters need no switch; give adapters={'name': 'path'}, or engine.adapters.load(...) later",
    "max_lora_rank": "give adapter_slots={rank: number}",
    "enforce_eager": "give graphs=False",
    "disable_cuda_graph": "give graphs=False",
    "enable_prefix_caching": "prefixes are always cached; leave it out",
    "disable_radix_cache": "prefixes are always cached, within a namespace: engine.open(namespace=...); leave it out",
    "enable_chunked_prefill": "long prompts are always cut; step_tokens= is the budget of one step",
    "disable_log_stats": "an engine logs no statistics; engine.stats() has them; leave it out",
    "log_level": "set it with logging.getLogger('sgl').setLevel(...)",
    "enable_expert_parallel": "give expert_parallel=True",
    "ep_size": "give expert_parallel=True with tensor_parallel=",
    "moe_ep_size": "give expert_parallel=True with tensor_parallel=",
    "guided_decoding_backend": "grammars are sgl's own; leave it out",
    "grammar_backend": "grammars are sgl's own; leave it out",
    "structured_outputs_config": "grammars are sgl's own; leave it out",
    "sampling_backend": "sampling is sgl's own; leave it out",
    "reasoning_parser": "a server finds it by the model's template; leave it out",
    "tool_call_parser": "a server finds it by the model's template; leave it out",
    "limit_mm_per_prompt": "the embedded engine reads text only; leave it out",
    "distributed_executor_backend": "ranks are processes of this machine; leave it out",
    "nnodes": "an engine runs on one machine; leave it out",
    "max_tokens": "it belongs to a gen or to a run: program.run(..., max_tokens=...)",
    "temperature": "it belongs to a gen or to a run: program.run(..., temperature=...)",
    "verbose": "leave it out; logging.getLogger('sgl') has what there is",
    "base_url": "for a server give sgl.RuntimeEndpoint(url) or sgl.OpenAI(model, base_url=...)",
}

VALUES = {
    "dtype": {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"},
    "kv_dtype": {"fp8_e5m2": "fp8", "fp8_e4m3": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"},
}
VALUE_SENTENCES = {
    ("load_format", "dummy"): "give dummy=True",
    ("load_format", "safetensors"): "leave it out: safetensors are read where there are some",
    ("load_format", "gguf"): "leave it out: the path of a .gguf file is enough",
    ("load_format", "bitsandbytes"): "leave it out, or give weights='int4'",
}


def value_meant(name: str, value: object) -> str | None:
    """What to write for a value that other engines take; None if it is none of theirs."""
    if not isinstance(value, str):
        return None
    own = VALUES.get(name, {}).get(value)
    return f"give {name}={own!r}" if own else VALUE_SENTENCES.get((name, value))


def native_dtype(value: Any) -> Any:
    """`torch.bfloat16` by its name; anything else as it is."""
    kind = type(value)
    return str(value).removeprefix("torch.") if (kind.__module__, kind.__name__) == ("torch", "dtype") else value
