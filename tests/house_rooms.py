"""The rooms of each floor, and which others each of them may import: only those that stand above it here.

A room is a folder with all below it, or a file that lies directly in the floor. The front of a floor, its
`__init__.py`, may name any of its rooms; a room that imports the front says so by the floor's name. What imports
run between the floors themselves is `FLOORS` in `house_imports.py`.
"""

from __future__ import annotations

Rows = dict[str, str]

LOOSE = {
    "sgl": 4,
    "lang": 4,
    "runtime": 2,
    "grammars": 4,
}  # files that may lie directly in a floor, its front not counted

ROOMS: dict[str, Rows] = {
    "sgl": {
        "tracebacks": "",
        "commands": "sgl tracebacks",
        "compat": "",
        "cli": "sgl commands",
        "__main__": "cli",
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
        "quantization": "errors layers kernels",
        "cache": "errors memory step layers",
        "attention": "errors step layers kernels cache",
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
        "executor": "errors step layers kernels quantization cache attention models loading adapters parallel "
        "sequences",
        "watch": "errors cache adapters parallel calibration sequences scheduling executor",
        # after the two cuts
        "loop": "errors common memory step quantization cache attention models loading adapters parallel "
        "calibration sampling sequences scheduling speculative executor watch",
        "build": "errors common memory step layers quantization cache attention models loading adapters parallel "
        "text calibration sampling sequences scheduling speculative executor watch loop",
        "process": "errors common sequences watch loop build",
        "replicas": "errors cache sequences executor watch build process",
        "engine": "errors cache loading adapters calibration sampling sequences watch build process replicas",
        "nano": "",
        "dialects": "errors common text nano",
        "server": "errors common cache loading text sampling sequences watch engine dialects",
    },
    "grammars": {
        "errors": "",
        "lru_cache": "",
        "algebra": "errors",
        "regex": "errors algebra",
        "literal_choices": "errors algebra",
        "schema": "errors algebra regex",
        "tokens": "errors lru_cache algebra regex",
        "ebnf": "errors algebra regex schema tokens",
        "structural": "errors algebra regex literal_choices schema tokens ebnf",
        "network": "errors algebra",
        "compile_client": "errors algebra tokens network",
        "automaton": "errors algebra tokens network compile_client",
        "drawing": "errors algebra network automaton",
        "compile": "errors algebra regex literal_choices schema tokens ebnf structural network compile_client "
        "automaton",
        "compile_server": "errors algebra tokens network compile_client automaton compile",
        "device": "errors tokens automaton compile",
    },
}
