"""The peers' side: transformers, outlines and guidance do the calls of a workload with the same weights.

transformers: `generate` on one padded batch; a choice is read off the logits after the prompt (every choice here is
one token); JSON is as many free tokens as sgl's answers have, because transformers has no constraints.
outlines: its models and generators over transformers, batched. guidance: gen, select and json, item by item: it has no
batches, and keeps the keys and values of the text that it saw last.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

BATCH = 64  # rows of a padded batch; sgl computes as many sequences at once
HERE = Path(__file__).resolve().parent
WHO = ("transformers", "outlines", "guidance")


def load(path: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model, and its tokenizer without the chat template: the prompts are written out already."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.chat_template = None
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval(), tokenizer


def faster_dtype(path: str) -> torch.dtype:
    """float32 or bfloat16, whichever generates 8 sequences faster here."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        calls = Transformers(*load(path, dtype))
        calls.write(["Hello"] * 8, 4)
        started = time.perf_counter()
        calls.write(["Hello, my name is"] * 8, 24)
        times[dtype] = time.perf_counter() - started
    return min(times, key=lambda dtype: times[dtype])


class Transformers:
    """free_tokens: how long a free answer is where JSON is asked for. made: tokens generated so far."""

    batched = True

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.free_tokens = self.made = 0

    def write(self, prompts: list[str], tokens: int) -> list[str]:
        return [text for part in _parts(prompts) for text in self._write(part, tokens)]

    def choose(self, prompts: list[str], choices: list[str]) -> list[str]:
        return [text for part in _parts(prompts) for text in self._choose(part, choices)]

    def fill(self, prompts: list[str], schema: dict[str, Any], tokens: int) -> list[str]:
        return self.write(prompts, self.free_tokens)

    @torch.inference_mode()
    def _write(self, prompts: list[str], tokens: int) -> list[str]:
        inputs = self._encode(prompts)
        rows = self.model.generate(
            **inputs, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0
        )
        self.made += tokens * len(prompts)
        return self.tokenizer.batch_decode(rows[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    @torch.inference_mode()
    def _choose(self, prompts: list[str], choices: list[str]) -> list[str]:
        inputs = self._encode(prompts)
        positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        logits = self.model(**inputs, position_ids=positions, logits_to_keep=1).logits[:, -1]
        best = logits[:, [self._token(choice) for choice in choices]].argmax(-1)
        return [choices[i] for i in best.tolist()]

    def _encode(self, prompts: list[str]) -> Any:
        return self.tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)

    def _token(self, choice: str) -> int:
        ids = self.tokenizer.encode(choice, add_special_tokens=False)
        if len(ids) != 1:
            raise ValueError(f"{choice!r} is {len(ids)} tokens; this peer compares choices of one token")
        return ids[0]


class Outlines:
    batched = True

    def __init__(self, model: Any, tokenizer: Any) -> None:
        import outlines

        self.made = self.free_tokens = 0
        self._outlines, self._generators = outlines, {}
        self._tokenizer = tokenizer
        self._model = outlines.from_transformers(model, tokenizer)

    def write(self, prompts: list[str], tokens: int) -> list[str]:
        found = [
            text
            for part in _parts(prompts)
            for text in self._model.batch(part, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        ]
        self.made += tokens * len(prompts)
        return found

    def choose(self, prompts: list[str], choices: list[str]) -> list[str]:
        return self._constrained(prompts, tuple(choices), lambda: Literal[tuple(choices)], 8)

    def fill(self, prompts: list[str], schema: dict[str, Any], tokens: int) -> list[str]:
        text = json.dumps(schema)
        return self._constrained(prompts, text, lambda: self._outlines.json_schema(text), tokens)

    def _constrained(self, prompts: list[str], key: Any, kind: Callable[[], Any], tokens: int) -> list[str]:
        if key not in self._generators:
            self._generators[key] = self._outlines.Generator(self._model, kind())
        found = [
            text
            for part in _parts(prompts)
            for text in self._generators[key].batch(part, max_new_tokens=tokens, do_sample=False)
        ]
        self.made += sum(len(self._tokenizer.encode(text, add_special_tokens=False)) for text in found)
        return found


class Guidance:
    """lm: a guidance model. Gens have a pattern that is too long for their tokens, so that none ends before."""

    batched = False

    def __init__(self, lm: Any, tokenizer: Any) -> None:
        import guidance

        self.made = self.free_tokens = 0
        self._guidance, self._lm, self._tokenizer = guidance, lm, tokenizer

    def write(self, prompts: list[str], tokens: int) -> list[str]:
        return self._each(
            prompts, self._guidance.gen("out", regex=f"(?s:.{{{16 * tokens},}})", max_tokens=tokens, temperature=0)
        )

    def choose(self, prompts: list[str], choices: list[str]) -> list[str]:
        return self._each(prompts, self._guidance.with_temperature(self._guidance.select(choices, name="out"), 0))

    def fill(self, prompts: list[str], schema: dict[str, Any], tokens: int) -> list[str]:
        return self._each(prompts, self._guidance.json("out", schema=schema, max_tokens=tokens, temperature=0))

    def _each(self, prompts: list[str], grammar: Any) -> list[str]:
        found = [(self._lm + prompt + grammar)["out"] for prompt in prompts]
        self.made += sum(len(self._tokenizer.encode(text, add_special_tokens=False)) for text in found)
        return found


def open_transformers(path: str, threads: int) -> tuple[Any, dict[str, Any]]:
    """The calls, and what the peer is: what matters of how it is used, its
    arithmetic, the packages that it is made of.
    """
    dtype = faster_dtype(path)
    note = "generate on one padded batch; JSON is free text of the same length, not compared"
    return Transformers(*load(path, dtype)), _described(note, dtype, "transformers", "torch")


def open_outlines(path: str, threads: int) -> tuple[Any, dict[str, Any]]:
    importlib.import_module("outlines")
    dtype = faster_dtype(path)
    return Outlines(*load(path, dtype)), _described(
        "over transformers, batched", dtype, "outlines", "transformers", "torch"
    )


def open_guidance(path: str, threads: int) -> tuple[Any, dict[str, Any]]:
    """Over llama.cpp where that is installed, which is faster for it here, else over transformers."""
    import guidance

    if all(map(importlib.util.find_spec, ("llama_cpp", "gguf"))):
        lm, tokenizer = _over_llama_cpp(guidance, path, threads)
        return Guidance(lm, tokenizer), _described(
            "over llama.cpp, item by item", torch.bfloat16, "guidance", "llama-cpp-python"
        )
    dtype = faster_dtype(path)
    model, tokenizer = load(path, dtype)
    crop_as_guidance_expects()
    lm = guidance.models.Transformers(model, tokenizer, echo=False, enable_monitoring=False)
    return Guidance(lm, tokenizer), _described(
        "over transformers, item by item", dtype, "guidance", "transformers", "torch"
    )


def _over_llama_cpp(guidance: Any, path: str, threads: int) -> tuple[Any, Any]:
    """llama.cpp's own tokenizer has no rule for this vocabulary: guidance gets the one of the Hugging Face files."""
    from guidance.models._transformers import TransformersTokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = None
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.gguf")
        subprocess.run(
            [sys.executable, str(HERE.parent / "gguf_nano.py"), path, file, "--kind", "bf16"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        lm = guidance.models.LlamaCpp(
            file, echo=False, enable_monitoring=False, n_ctx=2048, n_threads=threads, n_threads_batch=threads
        )
    lm._interpreter.engine.tokenizer = TransformersTokenizer(tokenizer)
    return lm, tokenizer


def crop_as_guidance_expects() -> None:
    """guidance 0.3.1 tells transformers' cache the length to keep; since 5.2x that takes what to remove, below zero."""
    from transformers import Cache

    inner = Cache.crop

    def crop(cache: Any, length: int) -> None:
        inner(cache, min(0, length - cache.get_seq_length()) if length > 0 else length)

    Cache.crop = crop


OPEN: dict[str, Callable[[str, int], tuple[Any, dict[str, Any]]]] = {
    "transformers": open_transformers,
    "outlines": open_outlines,
    "guidance": open_guidance,
}


def _described(note: str, dtype: torch.dtype, *packages: str) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in packages}
    compiles = "outlines" in packages  # kernels, for each size anew
    return {"compiles": compiles, "note": note, "dtype": str(dtype).removeprefix("torch."), "versions": versions}


def _parts(prompts: list[str]) -> list[list[str]]:
    return [prompts[i : i + BATCH] for i in range(0, len(prompts), BATCH)]
