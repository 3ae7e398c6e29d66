"""llama.cpp by its own decode call, as a process that a benchmark asks over pipes.

    PYTHON benchmarks/llama_cpp_peer.py        needs: pip install llama-cpp-python gguf

Reads a JSON object a line from stdin and answers with one on stdout, in this order of what can be asked:

    {"load": FILE, "sequences": 8, "context": 160, "threads": 2, "kv": "f16"}   a model and a context for it
    {"prompts": [[0, 5, ...], ...], "tokens": 128}                              greedy tokens of each, and seconds

All sequences take one step together, each under its own sequence id; tokens are chosen by numpy from the logits in
place. Seconds are reported in total and within `llama_decode` only.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np

KV = {"f32": api.GGML_TYPE_F32, "f16": api.GGML_TYPE_F16}
STEP, PART = 2048, 512  # tokens of a call to llama_decode, and of a pass within it: its own defaults


class Context:
    """A loaded model with room for some sequences."""

    def __init__(
        self, load: str, sequences: int, context: int, threads: int, kv: str, flash: int = 1, unified: bool = False
    ) -> None:
        """context: tokens of one sequence. The defaults, flash attention over a
        buffer for each sequence, were the fastest.
        """
        self.model = api.llama_model_load_from_file(load.encode(), api.llama_model_default_params())
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {load}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = context * sequences, sequences
        params.n_batch, params.n_ubatch = STEP, PART
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV[kv]
        params.flash_attn_type, params.kv_unified = flash, unified
        self.context = api.llama_init_from_model(self.model, params)
        self.size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = Batch(STEP)
        self.inside = 0.0

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """Greedy continuations; ids that end a text do not end it."""
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        self.inside, started = 0.0, time.perf_counter()
        numbers = np.arange(len(prompts), dtype=np.int32)
        lengths = np.asarray([len(prompt) for prompt in prompts], np.int32)
        newest = self._read(prompts, numbers, lengths)
        found, prefilled, read = [newest], time.perf_counter() - started, self.inside
        for step in range(tokens - 1):
            newest = self._decode(newest, lengths + step, numbers, numbers)
            found.append(newest)
        seconds = time.perf_counter() - started
        return {
            "tokens": np.stack(found, 1).tolist(),
            "seconds": seconds,
            "prefill_seconds": prefilled,
            "inside_seconds": self.inside,
            "inside_decode_seconds": self.inside - read,
        }

    def _read(self, prompts: list[list[int]], numbers: Any, lengths: Any) -> Any:
        """The first token after each prompt, all prompts in one call."""
        positions = np.concatenate([np.arange(length) for length in lengths])
        return self._decode(np.concatenate(prompts), positions, np.repeat(numbers, lengths), np.cumsum(lengths) - 1)

    def _decode(self, ids: Any, positions: Any, sequences: Any, wanted: Any) -> Any:
        """One step; the likeliest next tokens after its rows `wanted`."""
        batch = self.batch.fill(ids, positions, sequences, wanted)
        started = time.perf_counter()
        failed = api.llama_decode(self.context, batch)
        logits = api.llama_get_logits(self.context)  # waits until they are there
        self.inside += time.perf_counter() - started
        if failed:
            raise RuntimeError(f"llama_decode gave {failed} for {len(ids)} tokens")
        return np.ctypeslib.as_array(logits, (len(wanted), self.size)).argmax(1).astype(np.int32)

    def close(self) -> None:
        self.batch.close()
        api.llama_free(self.context)
        api.llama_model_free(self.model)


class Batch:
    """llama_batch with its arrays as numpy's, so that filling it costs no Python loop."""

    def __init__(self, size: int) -> None:
        self.raw = api.llama_batch_init(size, 0, 1)
        view = np.ctypeslib.as_array
        self.ids, self.positions = view(self.raw.token, (size,)), view(self.raw.pos, (size,))
        self.wanted = view(self.raw.logits, (size,))
        view(self.raw.n_seq_id, (size,))[:] = 1
        places = [ctypes.addressof(self.raw.seq_id[row].contents) for row in range(size)]
        self.sequences = np.zeros(size, np.int32)
        for row, place in enumerate(places):  # every row's list of one points into one array
            if place:
                self.raw.seq_id[row] = ctypes.cast(self.sequences.ctypes.data + 4 * row, ctypes.POINTER(ctypes.c_int32))
        self._places = places

    def fill(self, ids: Any, positions: Any, sequences: Any, wanted: Any) -> Any:
        count = self.raw.n_tokens = len(ids)
        self.ids[:count], self.positions[:count], self.sequences[:count] = ids, positions, sequences
        self.wanted[:count] = 0
        self.wanted[wanted] = 1
        return self.raw

    def close(self) -> None:
        for row, place in enumerate(self._places):
            self.raw.seq_id[row] = ctypes.cast(place, ctypes.POINTER(ctypes.c_int32))
        api.llama_batch_free(self.raw)


def main() -> None:
    quiet = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(quiet, None)
    api.llama_backend_init()
    tell({"llama-cpp-python": version("llama-cpp-python"), "features": api.llama_print_system_info().decode()})
    context: Context | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "load" not in asked:
            tell(context.generate(**asked) if context else {"error": "load a model first"})
            continue
        if context:
            context.close()
        context = Context(**asked)
        tell({"context": api.llama_n_ctx(context.context)})


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
