"""The rooms of each floor, and which others each of them may import: only those that stand above it here.

A room is a folder with all below it, or a file that lies directly in the floor. The front of a floor, its
`__init__.py`, may name any of its rooms; a room that imports the front says so by the floor's name. What imports
run between the floors themselves is `FLOORS` in `house_imports.py`.
"""

from __future__ import annotations

Rows = dict[str, str]

LOOSE = {"sgl": 15, "lang": 4, "runtime": 4, "grammars": 4}  # files that may lie directly in a floor, its front not counted

ROOMS: dict[str, Rows] = {
    "sgl": {
        "words": "",
        "tracebacks": "",
        "compat": "",
        "chat_tool": "words",
        "check_tool": "",
        "doctor_tool": "sgl",
        "grammar_tool": "",
        "quantize_tool": "",
        "run_tool": "tracebacks",
        "shard_tool": "",
        "models_tool": "words",
        "push_tool": "",
        "serve_tool": "words",
        "cli": "sgl chat_tool check_tool doctor_tool grammar_tool models_tool push_tool quantize_tool run_tool serve_tool shard_tool",
        "__main__": "cli",
    },
    "lang": {
        "places": "",
        "concurrency": "",
        "errors": "places",
        "chat": "errors",
        "config": "errors",
        "sampling": "errors",
        "backend": "places errors chat sampling",
        "media": "errors backend",
        "typed": "errors sampling backend",
        "nodes": "places errors sampling typed",
        "backends": "concurrency errors chat config sampling backend media",
        "interpreter": "places concurrency errors chat config sampling backend media nodes",
        "program": "concurrency errors config sampling backend typed nodes backends interpreter",
        "tools": "places concurrency errors sampling backend typed nodes backends interpreter program",
        "journal": "places concurrency errors chat sampling backend backends",
        "graph": "places errors chat config sampling backend typed nodes backends interpreter tools program",
        "report": "places errors chat sampling backend media nodes interpreter program graph",
        "function": "errors backends program graph",
        "check": "errors sampling nodes tools program function",
        "compat": "places concurrency errors chat config sampling backend nodes backends program graph function",
    },
    "runtime": {
        "errors": "",
        "values": "errors",
        "leash": "",  # processes that end with their owner
        "step": "errors",  # what one step computes, and its way to the device
        "layers": "errors step",
        "kernels": "errors step layers",
        "quantization": "errors step layers kernels",
        "cache": "errors step layers",
        "attention": "errors step layers kernels quantization cache",
        "models": "errors step layers kernels quantization cache attention",
        "loading": "errors values step layers quantization models",
        "adapters": "errors values step layers kernels cache attention models loading",
        "parallel": "errors leash step layers kernels quantization cache attention models loading adapters",
        "text": "errors values",
        "calibration": "errors step layers quantization cache attention models loading parallel text",
        "sampling": "errors values step kernels text layers",
        "sequences": "errors values cache text sampling",
        "scheduling": "errors cache sequences",
        "speculative": "errors values step layers cache sequences",
        "executor": "errors step layers kernels quantization cache attention models loading adapters parallel sequences",
        "loop": "errors values step layers quantization cache attention models loading adapters parallel text calibration sampling sequences scheduling speculative executor",
        "process": "errors leash values adapters text sequences loop",
        "replicas": "errors cache text executor sequences loop process",
        "engine": "errors values cache loading adapters calibration sampling sequences loop process replicas",
        "nano": "",
        "dialects": "errors text nano",
        "server": "errors cache loading text sampling sequences loop engine dialects",
    },
    "grammars": {
        "errors": "",
        "cache": "",
        "algebra": "errors",
        "regex": "errors algebra",
        "choices": "errors algebra",
        "schema": "errors algebra regex",
        "tokens": "errors cache algebra regex",  # families of tokens are classes of characters, as regex has them
        "ebnf": "errors algebra regex schema tokens",
        "structural": "errors algebra regex choices schema ebnf tokens",
        "network": "errors algebra",
        "apart": "errors algebra tokens network",  # networks of another process
        "automaton": "errors algebra tokens network apart",
        "drawing": "errors algebra network automaton",
        "compile": "errors algebra regex choices schema ebnf tokens structural network apart automaton",
        "worker": "errors algebra tokens network apart automaton compile",  # that other process
        "device": "errors tokens automaton compile",
    },
}
