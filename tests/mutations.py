"""Sixty faults that tests must find. Each is one replaced text of the product, with the test files that should fail.

    python tests/mutations.py              every mutation, under the short selection
    python tests/mutations.py --whole 3 7  mutations 3 and 7; where the short selection finds nothing, under the rest
    python tests/mutations.py --none       the same test files without a mutation: they must pass

The product is copied as links into a temporary folder, in which one file is replaced; C code is compiled there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LOWER_FLOORS = ("lang", "runtime", "grammars", "common")
SECONDS = 900  # of one run; one that takes longer is found
PYTEST = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "200"]
NO_TESTS = 5  # the exit status of pytest where nothing is selected


class Mutation(NamedTuple):
    """old occurs once in the file. tests: files under tests/ that should find it."""

    file: str
    old: str
    new: str
    breaks: str
    tests: str


SAMPLING, CACHE, LOOP = "runtime/sampling/", "runtime/cache/", "runtime/loop/"
TP, PP, TEXT = "runtime/parallel/tp/", "runtime/parallel/pp/", "runtime/text/"
MUTATIONS = [
    Mutation(
        SAMPLING + "token_masks.py",
        "words = (width + 31) // 32\n    if len(row) == words:",
        "words = width // 32\n    if len(row) == words:",
        "the last word of a mask is lost",
        "cpu/test_sampler.py cpu/test_constrained.py",
    ),
    Mutation(
        SAMPLING + "sampler.py",
        "rejected = ((count >= top_k)",
        "rejected = ((count > top_k)",
        "top-k keeps one token too many in torch",
        "cpu/test_sampler.py",
    ),
    Mutation(
        SAMPLING + "sampler.py",
        "counters = [positions[i] for i in params.rows]",
        "counters = [positions[0] for i in params.rows]",
        "all random rows draw at the first row's position",
        "cpu/test_sampler.py",
    ),
    Mutation(
        SAMPLING + "penalties.py",
        "counts[token] = counts.get(token, 0) + 1",
        "counts[token] = 1",
        "the frequency penalty counts a token once",
        "cpu/test_sampler.py cpu/test_engine.py",
    ),
    Mutation(
        SAMPLING + "logit_bias.py",
        "if len(row.output_ids) < row.params.min_tokens",
        "if len(row.output_ids) <= row.params.min_tokens",
        "end tokens are banned for one token too long",
        "cpu/test_sampler.py cpu/test_engine.py",
    ),
    Mutation(
        SAMPLING + "sampling_noise.py",
        "keys[:, 1] |= 1",
        "keys[:, 1] |= 3",
        "the noise of a seed is other noise",
        "cpu/test_sampler.py cpu/test_sampling_kernels.py",
    ),
    Mutation(
        "runtime/sequences/running_generation.py",
        "seed=life.seed() if params.seed is None else params.seed,",
        "seed=life.seed(),",
        "the seed of a request is ignored",
        "cpu/test_engine.py cpu/test_programs.py cpu/test_speculation.py",
    ),
    Mutation(
        "runtime/sequences/stop_checker.py",
        "if len(self.token_ids) + 1 >= self._limit or",
        "if len(self.token_ids) >= self._limit or",
        "a text has one token more than its limit",
        "unit/test_stops.py cpu/test_engine.py",
    ),
    Mutation(
        "runtime/sequences/stop_checker.py",
        "(match.end if self._params.keep_stop else match.start)",
        "match.start",
        "keep_stop cuts the stop off",
        "unit/test_stops.py",
    ),
    Mutation(
        "runtime/sequences/stop_checker.py",
        "if not follower.partial:\n                kept, end = count, length",
        "if True:\n                kept, end = count, length",
        "a token that ends inside a character is kept where a stop cuts",
        "unit/test_stops.py",
    ),
    Mutation(
        "runtime/sequences/stop_checker.py",
        "split = len(fresh) - hold",
        "split = len(fresh)",
        "text that may begin a stop is streamed",
        "unit/test_stops.py cpu/test_engine.py",
    ),
    Mutation(
        TEXT + "stop_strings.py",
        "self._ends[child] += self._ends[self._fail[child]]",
        "pass",
        "a stop inside another stop's beginning is missed",
        "unit/test_stops.py",
    ),
    Mutation(
        TEXT + "stop_patterns.py",
        "max(begin, len(text) - fresh - reach)",
        "max(begin, len(text) - fresh)",
        "a stop pattern that begins in older text is missed",
        "unit/test_stop_patterns.py unit/test_stops.py",
    ),
    Mutation(
        TEXT + "detokenizer.py",
        'return self._decode(b"", True)',
        'return self._decode(b"", False)',
        "a cut character at the end of a text is lost",
        "unit/test_detokenizer.py unit/test_stops.py",
    ),
    Mutation(
        CACHE + "radix_tree.py",
        "whole = same - same % self.pool.page_size",
        "whole = same",
        "a match ends inside a page",
        "unit/test_cache.py unit/test_cache_tree.py",
    ),
    Mutation(
        CACHE + "radix_tree.py",
        "head.locks, head.last_used = node.locks, node.last_used",
        "head.locks, head.last_used = 0, node.last_used",
        "the head of a split node loses its locks",
        "unit/test_cache.py unit/test_cache_tree.py",
    ),
    Mutation(
        CACHE + "radix_tree.py",
        "if used != node.last_used:\n                self._enqueue(node)\n                continue",
        "",
        "eviction ignores what was used since",
        "unit/test_cache.py unit/test_cache_tree.py",
    ),
    Mutation(
        CACHE + "radix_tree.py",
        "return self.roots.get(namespace) or RadixRoot(namespace)",
        'return self.roots.get(namespace) or self.roots.get("") or RadixRoot(namespace)',
        "a namespace finds the prefixes of another",
        "unit/test_cache.py unit/test_cache_tree.py cpu/test_adapters_engine.py",
    ),
    Mutation(
        CACHE + "prefix_cache.py",
        "if len(pages):\n            self.pool.release(pages)",
        "if len(pages):\n            self.pool.release(pages[:-1])",
        "a released sequence keeps its last page",
        "unit/test_cache.py cpu/test_engine.py",
    ),
    Mutation(
        CACHE + "prefix_cache.py",
        "parent.computed - parent.computed % self.pool.page_size)",
        "parent.computed)",
        "a fork shares a page that is not full",
        "unit/test_cache.py cpu/test_engine.py",
    ),
    Mutation(
        CACHE + "window_pages.py",
        "return max(0, length - self.reach + 1) // self.page_size",
        "return max(0, length - self.reach + 2) // self.page_size",
        "the first page of a window is given away too early",
        "unit/test_cache_windows.py cpu/test_windows_engine.py",
    ),
    Mutation(
        CACHE + "window_pages.py",
        "return self._kept if self._ends[page] else self._left_window",
        "return self._left_window",
        "ends of texts lose their windows first",
        "unit/test_cache_windows.py cpu/test_windows_engine.py",
    ),
    Mutation(
        CACHE + "host_kv_pages.py",
        "yield slice(start, stop), slice(first, first + stop - start)",
        "yield slice(start, stop), slice(first, first + 1)",
        "pages come back from main memory with another page's content",
        "cpu/test_host_tier.py",
    ),
    Mutation(
        "runtime/attention/padded_attention_groups.py",
        "(distance >= 0) & (distance < window)",
        "(distance >= 0) & (distance <= window)",
        "the mask of a window is one token too wide",
        "cpu/test_attention.py cpu/test_families_gemma.py",
    ),
    Mutation(
        "runtime/attention/padded_attention_groups.py",
        "first = max(first, begin - window + 1)",
        "first = max(first, begin - window + 2)",
        "the first key of a window is dropped",
        "cpu/test_attention.py cpu/test_families_gemma.py",
    ),
    Mutation(
        "runtime/attention/padded_attention_groups.py",
        "return all(span.queries == 1 and span.context == group[0].context for span in group)",
        "return all(span.queries == 1 for span in group)",
        "padding of shorter contexts is attended to",
        "cpu/test_attention.py",
    ),
    Mutation(
        "runtime/attention/unfused_attention.py",
        "scores = softcap * torch.tanh(scores / softcap)",
        "scores = torch.tanh(scores / softcap)",
        "capped scores lose their scale",
        "cpu/test_attention.py cpu/test_families_gemma.py",
    ),
    Mutation(
        "runtime/executor/eager_runner.py",
        "return np.repeat([hi for *_, hi in work] - ends, lengths) + np.arange(ends[-1])",
        "return np.repeat([hi for *_, hi in work] - ends, lengths) + np.arange(ends[-1]) + 1",
        "positions begin at one",
        "cpu/test_models.py cpu/test_engine.py",
    ),
    Mutation(
        "runtime/executor/step_arrays.py",
        "np.repeat(firsts - starts[:-1], lengths),",
        "np.repeat(firsts, lengths),",
        "positions of the second sequence of a GPU's step are shifted",
        "cpu/test_gpu_parts.py cpu/test_drafts_gpu_runner.py cpu/test_piecewise.py",
    ),
    Mutation(
        "runtime/executor/logit_rows.py",
        "rows += range(found.start + shift, found.stop + shift)\n            start += hi - lo",
        "rows += range(found.start + shift, found.stop + shift)\n            start += 1",
        "logits are read off another row",
        "cpu/test_engine.py cpu/test_models_greedy.py",
    ),
    Mutation(
        "runtime/layers/rotary_embedding.py",
        "blend = (turns - rope.low_freq_factor)",
        "blend = (turns - rope.high_freq_factor)",
        "frequencies of llama 3 are blended wrongly",
        "cpu/test_families_llama.py cpu/test_models.py",
    ),
    Mutation(
        "runtime/layers/rope_parameters.py",
        "low, high = math.floor(low), math.ceil(high)",
        "low, high = math.floor(low), math.floor(high)",
        "yarn stretches its last dimension too far",
        "cpu/test_families_modern.py cpu/test_families_llama.py cpu/test_families_latent.py",
    ),
    Mutation(
        "runtime/layers/rotary_embedding.py",
        "self.table = self._build(1 << (length - 1).bit_length())",
        "self.table = self._build(1 << (length - 1).bit_length() - 1)",
        "the table of positions ends too early",
        "cpu/test_models.py cpu/test_models_greedy.py cpu/test_engine.py",
    ),
    Mutation(
        "runtime/models/spec/alibi_slopes.py",
        "for power in range(1, 2 * (heads - n) + 1, 2)]",
        "for power in range(2, 2 * (heads - n) + 2, 2)]",
        "heads beyond a power of two have wrong slopes",
        "cpu/test_families_bloom.py",
    ),
    Mutation(
        "runtime/models/reference/reference_routing.py",
        "return chosen, weights * router.scale",
        "return chosen, weights",
        "weights of experts lose their scale",
        "cpu/test_experts.py cpu/test_expert_kernels.py cpu/test_compiled_parts.py",
    ),
    Mutation(
        "runtime/models/reference/reference_routing.py",
        'topk(2 if router.group_score == "two" else 1, dim=2)',
        "topk(1, dim=2)",
        "groups of experts are chosen by one score",
        "cpu/test_experts.py cpu/test_expert_kernels.py cpu/test_compiled_parts.py",
    ),
    Mutation(
        "runtime/quantization/quantized_weight.py",
        "each = inputs[::group] // self.group",
        "each = inputs[::group] // group",
        "a rank takes the scales of other groups",
        "cpu/test_ranks_quantized.py cpu/test_quantization.py unit/test_grouped.py",
    ),
    Mutation(
        "runtime/quantization/readers/gptq_reader.py",
        "else 1\n\n    def read",
        "else 0\n\n    def read",
        "zeros of GPTQ's first version are one too small",
        "unit/test_readers_gptq.py unit/test_gptq.py cpu/test_quantized_loading.py",
    ),
    Mutation(
        "runtime/layers/float8_reference.py",
        "return (x.float() / scale).clamp_(-LARGEST, LARGEST).to(FP8)",
        "return (x.float() * scale).clamp_(-LARGEST, LARGEST).to(FP8)",
        "keys and values are stored with the inverse scale",
        "cpu/test_kv_float8.py cpu/test_kv_scales.py cpu/test_attention.py",
    ),
    Mutation(
        TP + "tensor_slices.py",
        "return range(self.rank * each, (self.rank + 1) * each)",
        "return range((self.ranks - 1 - self.rank) * each, (self.ranks - self.rank) * each)",
        "ranks hold each other's heads of queries, but their own of the head",
        "cpu/test_ranks_split.py cpu/test_ranks_state.py",
    ),
    Mutation(
        TP + "tensor_slices.py",
        "else range(self.rank * count // self.ranks, self.rank * count // self.ranks + 1)",
        "else range(0, 1)",
        "with few heads of keys all ranks hold the first",
        "cpu/test_ranks_split.py",
    ),
    Mutation(
        TP + "tensor_parallel_split.py",
        "part.alibi[heads.start : heads.stop]",
        "part.alibi[: len(heads)]",
        "the second rank has the slopes of the first",
        "cpu/test_ranks_split.py",
    ),
    Mutation(
        TP + "sharded_source.py",
        "int(kept[row]) * width + within, part[at : at + count]",
        "int(kept[row]) * width, part[at : at + count]",
        "a part that is read in pieces repeats the beginning of a row",
        "cpu/test_ranks_split.py",
    ),
    Mutation(
        PP + "pipeline_stages.py",
        "replace(part, source=part.source - first)",
        "replace(part, source=part.source)",
        "a layer of a later stage reads another layer's keys",
        "cpu/test_stages_split.py cpu/test_stages_windows.py",
    ),
    Mutation(
        "runtime/csrc/sampling/token_sampling.c",
        "const uint32_t bits = word < words ? (uint32_t)mask[word] : 0;",
        "const uint32_t bits = word < words ? (uint32_t)mask[word] : ~0u;",
        "columns after the words of a mask are allowed",
        "cpu/test_sampler.py",
    ),
    Mutation(
        "runtime/adapters/lora_linear.py",
        "@ second[:, start:stop] * float(scales[piece])",
        "@ second[:, start:stop]",
        "adapters lose their scale",
        "cpu/test_adapters.py cpu/test_adapters_within.py",
    ),
    Mutation(
        "runtime/adapters/adapter_slots.py",
        "found.used, found.holds, found.reserved = self._clock, found.holds + 1, 0.0",
        "found.used, found.holds, found.reserved = self._clock, 1, 0.0",
        "a slot that two sequences hold is free after one of them",
        "cpu/test_adapter_slots.py cpu/test_adapters_engine.py",
    ),
    Mutation(
        LOOP + "draft_verification.py",
        "kept = min(kept, max(len(seq) - text - 1, 0))",
        "kept = min(kept, max(len(seq) - text, 0))",
        "a draft's last token is taken as computed",
        "cpu/test_speculation.py cpu/test_draft_model.py cpu/test_draft_heads.py",
    ),
    Mutation(
        LOOP + "step_execution.py",
        "for seq in [blamed] if blamed is not None else [item.seq for item in work]:",
        "for seq in [] if blamed is not None else [item.seq for item in work]:",
        "the error of a sequence is swallowed",
        "cpu/test_failing_sequence.py",
    ),
    Mutation(
        LOOP + "sequence_lifecycle.py",
        "except BaseException as error:\n            self.fail(seq, error)\n            return None",
        "except BaseException:\n            return None",
        "an operation that raises is forgotten",
        "cpu/test_failing_sequence.py cpu/test_engine.py",
    ),
    Mutation(
        "runtime/scheduling/scheduler.py",
        "self.waiting.add(seq)\n        self.preemptions += 1",
        "self.preemptions += 1",
        "a preempted sequence never comes back",
        "cpu/test_scheduler_pressure.py cpu/test_engine.py",
    ),
    Mutation(
        "runtime/sequences/jump_forward.py",
        "keep = min(self._settled(matcher, fresh), max(room, 0))",
        "keep = self._settled(matcher, fresh)",
        "a jump writes beyond max_tokens",
        "unit/test_tokenizer_jump.py cpu/test_engine_grammar.py cpu/test_constrained.py",
    ),
    Mutation(
        "grammars/automaton/grammar_matcher.py",
        "del self._states[-count:]\n            del self._tokens[-count:]",
        "del self._states[-count:]",
        "a rollback keeps the tokens",
        "unit/test_drafts.py unit/test_tokenizer_jump.py cpu/test_speculation.py",
    ),
    Mutation(
        "grammars/schema/number_ranges.py",
        '_WHOLE = alt(Literal(b"0"), seq(digit(1), repeat(digit())))',
        '_WHOLE = alt(Literal(b"0"), seq(digit(0), repeat(digit())))',
        "whole numbers may begin with zeros",
        "unit/grammars/test_grammar_schema_digits.py unit/grammars/test_grammar_schema_cases.py"
        " unit/grammars/test_grammar_schema_oracle.py",
    ),
    Mutation(
        "grammars/core/masks/token_trie_walk.c",
        "k < t->node[to].first; k++) out[t->ids[k] >> 5] |=",
        "k < t->node[to].first - 1; k++) out[t->ids[k] >> 5] |=",
        "a mask lacks the last token of each subtree",
        "unit/grammars/test_grammar_masks.py unit/grammars/test_grammar_mask_families.py",
    ),
    Mutation(
        "common/child_process/serialized_error.py",
        "made.__dict__.update(self.attributes)",
        "pass",
        "errors of another process lose what they hold",
        "cpu/test_process.py cpu/test_process_engine.py",
    ),
    Mutation(
        "lang/program/batch_runs.py",
        "settings.for_item(begun), bar",
        "settings.for_item(0), bar",
        "all items of a generator-style batch have the seed of the first",
        "unit/test_lang_programs.py unit/test_journal.py cpu/test_programs.py unit/test_lang_batch_errors.py",
    ),
    Mutation(
        "lang/journal/journal_file.py",
        "if found and found[1] != _sum(line[:-_TAIL]):",
        "if found and not found[1]:",
        "a damaged line of a journal is read",
        "unit/test_journal_damage.py",
    ),
    Mutation(
        "lang/sampling/text_limits.py",
        "return at_limit(meta) and not is_complete(text, options)",
        "return at_limit(meta)",
        "a text that is complete at its limit counts as cut",
        "unit/test_limits.py cpu/test_limits_engine.py",
    ),
    Mutation(
        "runtime/dialects/model_output_parser.py",
        "if self._blank and not self.fresh:",
        "if not self.fresh:",
        "an empty piece of text is reported at the end",
        "unit/test_dialects.py unit/test_dialects_formats.py",
    ),
]


@contextmanager
def mutated(mutation: Mutation | None) -> Iterator[Path]:
    """A folder to import `sgl` from, which is the product with the mutation."""
    with tempfile.TemporaryDirectory(prefix="sgl_mutation_") as folder:
        package = Path(folder, "sgl")
        for floor, place in (("sgl", package), *((name, package / name) for name in LOWER_FLOORS)):
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / floor, place, skipped, copy_function=os.symlink, dirs_exist_ok=True)
        if mutation is not None:
            place = package / mutation.file.removeprefix("sgl/")
            place.unlink()
            place.write_text(replaced(mutation))
            if place.suffix in (".c", ".h", ".inc"):
                compile_core(package, mutation)
        yield Path(folder)


def replaced(mutation: Mutation) -> str:
    text = (ROOT / mutation.file).read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has {text.count(mutation.old)} times {mutation.old!r}")
    return text.replace(mutation.old, mutation.new)


def compile_core(package: Path, mutation: Mutation) -> None:
    """Replace the compiled parts of the package by those of its C code."""
    for part in package.rglob("_c*.so"):
        part.unlink()
    with tempfile.TemporaryDirectory(prefix="sgl_build_") as folder:
        shutil.copytree(package, Path(folder, "sgl"))
        for floor in LOWER_FLOORS:
            Path(folder, floor).symlink_to(Path("sgl", floor))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(package.parent)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    if not list(package.rglob("_c*.so")):
        raise RuntimeError(f"{mutation.file} does not compile")


def finds(site: Path, tests: str, *options: str) -> bool:
    """Whether a test fails."""
    env = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    files = [f"tests/{name}" for name in tests.split()]
    try:
        status = subprocess.run([*PYTEST, *options, *files], cwd=ROOT, env=env, timeout=SECONDS, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    return status.returncode not in (0, NO_TESTS)


def verdict(mutation: Mutation, whole: bool) -> str:
    with mutated(mutation) as site:
        if finds(site, mutation.tests):
            return "found"
        return "found by the rest" if whole and finds(site, mutation.tests, "--rest") else "NOT found"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_true", help="under the short selection (the default)")
    which.add_argument(
        "--whole", action="store_true", help="under the rest too, where the short selection finds nothing"
    )
    which.add_argument("--none", action="store_true", help="run the tests without mutations")
    parser.add_argument("numbers", nargs="*", type=int, help="of mutations, from 1; without any: all")
    asked = parser.parse_args(arguments)
    counts: dict[str, int] = {}
    for number in asked.numbers or range(1, len(MUTATIONS) + 1):
        mutation = MUTATIONS[number - 1]
        if asked.none:
            with mutated(None) as site:
                found = "FAILS without a mutation" if finds(site, mutation.tests) else "passes"
        else:
            found = verdict(mutation, asked.whole)
        counts[found] = counts.get(found, 0) + 1
        print(f"{number:2}  {found:17}  {mutation.breaks} ({mutation.file})", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.items()))


if __name__ == "__main__":
    main()
