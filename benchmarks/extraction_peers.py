"""outlines, guidance and instructor on the same prompts and schemas, as a process that `extraction_beside.py` starts.

    PYTHON benchmarks/extraction_peers.py NAME MODEL < rows.jsonl        needs: the package NAME, transformers, torch

NAME is outlines, guidance or instructor; MODEL a folder of weights, for instructor the address of a server with
OpenAI's protocol. A row of stdin has `prompt`, `messages` and `schema`. Prints JSON: texts, seconds, seconds_to_load.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

MOST_TOKENS = 200
BATCH = 10  # prompts of one schema that outlines' transformers model takes together
CALLS = 16  # requests at a time of instructor
Row = dict[str, Any]
Work = Callable[[list[Row]], list[str]]


def outlines(model: str) -> Work:
    from outlines import Generator, from_transformers
    from outlines.inputs import Chat
    from outlines.types import JsonSchema

    loaded = from_transformers(*transformers_model(model))

    def work(rows: list[Row]) -> list[str]:
        texts: list[str] = []
        for part in parts(rows):
            generator = Generator(loaded, JsonSchema(part[0]["schema"]))
            prompts = [Chat(row["messages"]) for row in part]  # a text would become a user turn of the chat template
            texts += generator.batch(prompts, max_new_tokens=MOST_TOKENS, do_sample=False)
        return texts

    return work


def guidance(model: str) -> Work:
    import guidance

    loaded = guidance.models.Transformers(*transformers_model(model), echo=False, enable_monitoring=False)

    def one(row: Row) -> str:
        grammar = guidance.json(
            "x", schema=row["schema"], max_tokens=MOST_TOKENS, separators=(", ", ": "), temperature=0.0
        )
        return str((loaded + row["prompt"] + grammar)["x"])

    return lambda rows: [one(row) for row in rows]


def instructor(address: str) -> Work:
    import instructor
    import openai
    from instructor.core import InstructorError

    from benchmarks.extraction_types import model_of

    client = instructor.from_openai(openai.OpenAI(base_url=address, api_key="none"), mode=instructor.Mode.JSON_SCHEMA)

    def one(row: Row) -> str:
        try:
            found = client.chat.completions.create(
                model="nano",
                response_model=model_of(row["schema"]),
                messages=row["messages"],
                temperature=0,
                max_tokens=MOST_TOKENS,
                max_retries=0,
            )
        except InstructorError:  # one that is cut has no value
            return ""
        return str(found.model_dump_json(exclude_none=True))

    def work(rows: list[Row]) -> list[str]:
        with ThreadPoolExecutor(CALLS) as pool:
            return list(pool.map(one, rows))

    return work


def transformers_model(folder: str) -> tuple[Any, Any]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), tokenizer


def parts(rows: list[Row]) -> list[list[Row]]:
    """Rows of one schema together, at most BATCH of them."""
    found: list[list[Row]] = []
    for row in rows:
        if found and found[-1][0]["schema"] == row["schema"] and len(found[-1]) < BATCH:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def main() -> None:
    name, model = sys.argv[1:]
    rows = [json.loads(line) for line in sys.stdin]
    started = time.perf_counter()
    work = {"outlines": outlines, "guidance": guidance, "instructor": instructor}[name](model)
    loaded = time.perf_counter()
    texts = work(rows)
    done = time.perf_counter()
    said = {"texts": texts, "seconds": done - loaded, "seconds_to_load": loaded - started, "version": version(name)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
