"""A process that starts an engine and answers once, with the time of each step; `start.py` runs it.

    python benchmarks/start_child.py sgl MODEL '{"context": 2048}'
    python benchmarks/start_child.py llama.cpp FILE.gguf '{"n_ctx": 2048}'     needs: pip install llama-cpp-python
    python benchmarks/start_child.py torch - '{}'                              imports torch alone

The last line on stdout is a JSON object: `marks` (name of a step -> time.time() at its end), `phases` (seconds of the
engine's own phases), `text`, `peak` and `kept` (bytes of memory at most, and at the end).
"""

import json
import sys
import time

marks = {"python": time.time()}
PROMPT, TOKENS = "The capital of France is", 8
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer"}},
    "required": ["city", "population"],
}


def mark(name):
    marks[name] = time.time()


def start_sgl(model, options):
    import sgl

    mark("import sgl")
    engine = sgl.Engine(model or None, **options)
    mark("ready")
    text = run(engine, sgl.gen("answer", max_tokens=TOKENS, temperature=0, ignore_eos=True), sgl)
    mark("first answer")
    run(engine, sgl.gen("answer", max_tokens=60, temperature=0, json_schema=json.dumps(SCHEMA)), sgl)
    mark("first schema")
    phases = engine.info().get("startup", {})
    kept = resident("VmRSS")
    engine.close()
    return text, phases, kept


def run(engine, gen, sgl):
    @sgl.function
    def program(s):
        s += PROMPT
        s += gen

    return program.run(backend=engine)["answer"]


def start_llama_cpp(file, options):
    from llama_cpp import Llama

    mark("import llama_cpp")
    model = Llama(file, verbose=False, **options)
    mark("ready")
    text = model(PROMPT, max_tokens=TOKENS, temperature=0)["choices"][0]["text"]
    mark("first answer")
    from llama_cpp import LlamaGrammar

    grammar = LlamaGrammar.from_json_schema(json.dumps(SCHEMA), verbose=False)
    model(PROMPT, max_tokens=60, temperature=0, grammar=grammar)
    mark("first schema")
    return text, {}, resident("VmRSS")


def import_torch(model, options):
    import torch  # noqa: F401

    mark("ready")
    return "", {}, resident("VmRSS")


def resident(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


STARTS = {"sgl": start_sgl, "llama.cpp": start_llama_cpp, "torch": import_torch}

if __name__ == "__main__":
    kind, model, options = sys.argv[1:]
    text, phases, kept = STARTS[kind]("" if model == "-" else model, json.loads(options))
    found = {"marks": marks, "phases": phases, "text": text, "peak": resident("VmHWM"), "kept": kept}
    print(json.dumps(found, default=str), flush=True)
