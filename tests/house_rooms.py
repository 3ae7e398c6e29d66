"""The rooms of each floor, and which others each of them may import: only those that stand above it here.

A room is a folder with all below it, or a file that lies directly in the floor. The front of a floor, its
`__init__.py`, may name any of its rooms; a room that imports the front says so by the floor's name. What imports
run between the floors themselves is `FLOORS` in `house_imports.py`. `SUBROOMS` says the same of the rooms within a
room, for which imports inside functions and those for type checkers count too.
"""

from __future__ import annotations

Rows = dict[str, str]

LOOSE = {
    "sgl": 4,
    "lang": 4,
    "runtime": 2,
    "grammars": 3,
    "common": 3,
}  # files that may lie directly in a floor, its front not counted

ROOMS: dict[str, Rows] = {
    "sgl": {
        "tracebacks": "",
        "commands": "sgl tracebacks",
        "compat": "",
        "cli": "sgl commands",
        "__main__": "cli",
        "documents": "",
        "observability": "",
        "tasks": "sgl documents",
        "evaluation": "documents tasks",
    },
    "lang": {
        "places": "",
        "concurrency": "",
        "errors": "places",
        "chat": "errors",
        "global_config": "errors",
        "sampling": "errors",
        "backend": "places errors chat sampling",
        "media": "errors backend",
        "typed": "errors sampling backend",
        "nodes": "places errors sampling typed",
        "backends": "concurrency errors chat global_config sampling backend media",
        "interpreter": "places concurrency errors chat global_config sampling backend media nodes",
        "program": "concurrency errors global_config sampling backend typed nodes backends interpreter",
        "tools": "places concurrency errors sampling backend typed nodes backends interpreter program",
        "journal": "places concurrency errors chat sampling backend backends",
        "graph": "places errors chat global_config sampling backend typed nodes backends interpreter program tools",
        "report": "places errors chat sampling backend media nodes interpreter program graph",
        "sgl_function": "errors backends program graph",
        "check": "errors sampling nodes program tools sgl_function",
        "compat": "places concurrency errors chat global_config sampling backend nodes backends program graph "
        "sgl_function",
    },
    "runtime": {
        "errors": "",
        "common": "errors",
        "memory": "errors common",
        "step": "",
        "layers": "",
        "kernels": "step layers",
        "quantization": "errors common layers kernels",
        "cache": "errors common memory step layers",
        "attention": "errors common step layers kernels cache",
        "models": "errors common memory step layers kernels quantization cache attention",
        "loading": "errors common layers quantization models",
        "adapters": "errors common memory step layers kernels cache attention models loading",
        "parallel": "errors common step layers kernels quantization cache attention models loading adapters",
        "text": "errors common",
        "calibration": "errors step layers quantization cache attention models loading parallel text",
        "sampling": "errors common step layers kernels text",
        "sequences": "errors common cache text sampling",
        "scheduling": "errors cache sequences",
        "speculative": "errors common layers cache sequences",
        "executor": "errors common step layers kernels quantization cache attention models loading adapters parallel "
        "sequences",
        "watch": "errors cache adapters parallel calibration sequences scheduling executor",
        # after the two cuts
        "loop": "errors common memory step quantization cache attention models loading adapters parallel "
        "calibration sampling sequences scheduling speculative executor watch",
        "build": "errors common memory step layers quantization cache attention models loading adapters parallel "
        "text calibration sampling sequences scheduling speculative executor watch loop",
        "process": "errors common sequences watch loop build",
        "replicas": "errors cache sequences executor watch build process",
        "engine": "errors common cache loading adapters calibration sampling sequences watch build process replicas",
        "nano": "",
        "dialects": "errors common text nano",
        "server": "errors common cache loading text sampling sequences watch engine dialects",
    },
    "grammars": {
        "errors": "",
        "algebra": "errors",
        "regex": "errors algebra",
        "literal_choices": "errors algebra",
        "copied": "errors algebra",
        "schema": "errors algebra regex copied",
        "tokens": "errors algebra regex",
        "ebnf": "errors algebra regex schema tokens",
        "structural": "errors algebra regex literal_choices schema tokens ebnf",
        "network": "errors algebra copied",
        "compile_client": "errors algebra copied tokens network",
        "automaton": "errors algebra copied tokens network compile_client",
        "drawing": "errors algebra network automaton",
        "compile": "errors algebra regex literal_choices schema tokens ebnf structural network compile_client "
        "automaton",
        "compile_server": "errors algebra copied tokens network compile_client automaton compile",
        "second_opinion": "errors schema ebnf compile",
    },
    "common": {"file_cache": "", "lru_cache": "", "process_memory": "", "child_process": ""},
}

SUBROOMS: dict[str, Rows] = {
    "runtime/kernels": {
        "launch": "",
        "packed": "",
        "activation_kernels": "launch",
        "batch_invariant_matmul": "launch",
        "logit_softcap": "launch",
        "rms_norm": "launch",
        "sampling_kernels": "launch",
        "embed_tokens": "launch rms_norm",
        "residual_norm": "launch rms_norm",
        "gate_up_gemm": "launch activation_kernels batch_invariant_matmul",
        "attention": "launch rms_norm",
        "comm": "launch rms_norm",
        "adapters": "launch batch_invariant_matmul",
        "gemv": "launch packed activation_kernels batch_invariant_matmul attention comm adapters",
        "quantized": "launch packed activation_kernels batch_invariant_matmul gemv",
        "experts": "launch packed activation_kernels batch_invariant_matmul rms_norm residual_norm gemv quantized",
        "recurrent": "launch activation_kernels gemv",
    },
    "runtime/models": {
        "spec": "",
        "load_statistics": "",
        "hidden_state_pooling": "",
        "executor_protocols": "",
        "families": "spec",
        "reference": "spec executor_protocols",
        "decoder_parts": "spec reference",
        "cpu": "spec executor_protocols reference decoder_parts",
        "gpu": "spec reference decoder_parts",
        "placement": "spec reference gpu",
        "expected_executors": "spec cpu",
        "layer_executors": "reference decoder_parts cpu gpu placement expected_executors",
        "decoder": "spec load_statistics hidden_state_pooling reference cpu gpu placement layer_executors",
        "hidden_state_capture": "cpu gpu decoder",
        "chunk_invariance": "spec gpu decoder",
        "draft_head": "spec reference layer_executors decoder",
        "transformers_backend": "spec hidden_state_pooling reference decoder",
        "kv_cache_scales": "decoder transformers_backend",
        "describe": "spec families expected_executors layer_executors decoder transformers_backend",
    },
}
