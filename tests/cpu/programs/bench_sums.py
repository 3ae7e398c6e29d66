"""A benchmark in the style of public ones: its own command line, a batch, files with the results."""

import argparse
import json
import time

from sglang.api import set_default_backend
from sglang.test.test_utils import add_common_sglang_args_and_parse, dump_bench_raw_result, select_sglang_backend
from sglang.utils import dump_state_text, read_jsonl


def main(args):
    set_default_backend(select_sglang_backend(args))
    lines = list(read_jsonl(args.data_path))[: args.num_questions]

    import sglang as sgl

    @sgl.function
    def add(s, question):
        s += "Question: " + question + "\nAnswer:"
        s += sgl.gen("answer", max_tokens=4, stop="Question")

    started = time.perf_counter()
    states = add.run_batch(
        [{"question": line["question"]} for line in lines], temperature=0, num_threads=args.parallel, progress_bar=True
    )
    latency = time.perf_counter() - started
    tokens = sum(s.get_meta_info("answer")["completion_tokens"] for s in states)
    dump_state_text(f"tmp_output_{args.backend}.txt", states)
    dump_bench_raw_result(
        args.raw_result_file, states, [s["answer"] for s in states], [line["answer"] for line in lines]
    )
    with open(args.result_file, "a") as file:
        file.write(json.dumps({"task": "sums", "requests": len(states), "tokens": tokens, "latency": latency}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-path", default="sums.jsonl")
    parser.add_argument("--num-questions", type=int, default=10)
    main(add_common_sglang_args_and_parse(parser))
