"""The engine's options, checked by name and by value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.argument_checks import WORD, shown
from ..errors import ConfigError
from ..loading.sharded_state import ParallelSizes
from ..memory.memory_sizes import parse_memory
from ..quantization.weight_forms import CALIBRATED, FORMS
from ..speculative.speculation_options import SpeculationOptions, parse_speculation
from .engine_config_checks import check
from .engine_options import SMALL, option, options_of
from .option_aliases import SENTENCES, native_dtype

if TYPE_CHECKING:
    from ..parallel.ep.expert_parallel_split import ExpertParallelSplit

MOST_THREADS = 4096  # of a process: far more than that, and the libraries below end it


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of `Engine`.

    dtype        "float32", "bfloat16", "float16", one of these of torch, or "auto": bfloat16 on a CPU or GPU that has
                 instructions for it
    device       "auto", "cpu", "cuda", "cuda:1" ...
    threads      CPU threads; None: the usable physical cores
    context      longest sequence in tokens; None: the model's own limit
    page_size    token slots of a KV page
    kv_tokens    size of the KV pool in tokens; None: from kv_memory
    kv_memory    size of the KV pool, bytes or text such as "2GB"; None: from memory
    host_kv      main memory for prefixes that the pool has no room for, bytes or text such as "4GB"; 0: they are
                 dropped
    kv_dtype     format of the stored keys and values: "auto" (as dtype), or "fp8": half of bfloat16's bytes, less
                 precise; divided by the checkpoint's scales where it has some, otherwise as they are
    window_tokens  of models with layers that see a window only: tokens that these have rows for, with kv_tokens; those
                 that fall out of a window are freed. None: a share of kv_tokens by what texts of a typical length need;
                 as many as kv_tokens: all layers keep all tokens
    states       of models with recurrent layers: how many states there are, for running sequences and for cached
                 prefixes; None: from state_share
    state_share  of such models: share of the KV memory that goes to states, as far as they are of use
    state_every  of such models: tokens between the states that a long prompt leaves for others that begin with the same
                 tokens; None: 256 on the CPU, 2048 on a GPU
    memory       share of the free memory that weights, activations and KV may use together; None: 0.92 on a GPU; on the
                 CPU the KV pool takes a quarter of the free memory, up to 131,072 tokens
    expert_memory  of mixtures of experts on a GPU: "device"; "host": their weights are in main memory, and a step
                 copies those that it chooses; or bytes, also as text such as "40GB", for the experts of the first
                 layers, the others stay in main memory
    adapters     LoRA adapters to load at the start: directories of PEFT's by name, as `engine.adapters.load` takes them
    adapter_slots  how many adapters are on the device at a time: a number, for ranks up to 16, or numbers by rank, such
                 as {16: 8, 64: 2}. None: 8 of each rank that is loaded, on a CPU; none on a GPU, whose memory must be
                 set aside at the start
    adapter_extras  on a GPU, of its memory, what is set aside next to the slots for what adapters have other than pairs
                 of projections: whole tables, pairs of experts, factors and biases; bytes or text such as "2GB"
    adapter_memory  main memory for adapters, bytes or text such as "4GB"; those that were used least recently are
                 dropped, and read again from their files when they are wanted
    weights      "auto" (as stored, in dtype), or quantised while loading. In 8 bits: "int8", "fp8" on a GPU,
                 "fp8_block" with a scale for each 128 x 128. In 4 bits: "int4", "int4_hqq", which loses less quality
                 and takes longer to load, "int4_gptq", which loses least and needs `calibration`, and the small floats
                 "nvfp4" and "mxfp4"
    calibration  what flows through the model while it is quantised: a list of texts, conversations (lists of messages)
                 or token ids like those that the model is for; a .txt or .jsonl file of them; or a function that gets
                 an engine of the unquantised model and runs programs on it, whose texts are taken: `lambda engine:
                 ask.run(..., backend=engine)`
    activations  scales of the inputs of "fp8" products: "dynamic", each row's own; or one that `calibration` found, of
                 the largest magnitude ("maximum") or of that which all but 0.01 % stay below ("percentile")
    load_format  "auto": safetensors, GGUF or what `sgl shard` wrote; "sharded_state": only the last; "pt": also pickled
                 .bin and .pt files where there are no safetensors; only tensors are read from them, and none of their
                 code runs
    step_tokens  token budget of one step; None: 1024 on the CPU, 8192 on a GPU
    prompt_seconds  how long prompts may hold up a step in which others stream their text: they are cut to what was
                 measured to take so long, 256 tokens at least; None: 0.05 on a GPU, 0.5 on the CPU; 0: as long as they
                 take
    max_running  sequences computed in one step at most; None: 64 on the CPU, 256 on a GPU
    attention    "auto" or the name of a backend
    graphs       on a GPU: replay decode-only steps as CUDA graphs
    run_ahead    start a step before the previous step's results are read; None: only on a GPU, and not with `draft`
    deterministic  the same bits for a request whatever else is running, at the cost of speed
    speculation  "auto": draft tokens from what was written before (in the text, its prompt, finished texts of its
                 namespace, and in the same state of a grammar) and compute them together; the sampler keeps those that
                 it would have chosen, so the text is the same. As many as are measured to pay; steps with some do not
                 run ahead. False: not at all. "exact": with deterministic=True, where not a bit of a logit can change;
                 and what a grammar forces is sampled too, with drafts in place of jump_forward. A dict: {"drafters":
                 [of "forced", "states", "suffix", "named"], "most": tokens of a draft, "learn": from finished texts,
                 "control": only what pays, "exact": as above}, each of which may be left out
    draft        with speculation: what drafts too, as `Engine` takes models. A smaller model with the same tokenizer;
                 also an EAGLE or EAGLE-3 head of the model, or "mtp" for the layer that its own checkpoint has for it.
                 It has its own KV pool, of as many tokens, in the same memory. None: nothing
    jump_forward  append tokens that a grammar forces without sampling them (on a GPU: while few sequences run and it
                 pays)
    json_options  how JSON is written and read from schemas, see `sgl.grammars.SchemaOptions`; options left out come
                 from the model (`json_options` in its directory's `sgl.json`), otherwise from the defaults
    tokenizer    a model whose tokenizer and end tokens are taken, named as for `Engine`, if not the checkpoint's own
    chat_template  replaces the checkpoint's: Jinja text, the path of a .jinja file, or the name of a known format
    implementation  the code that computes the model: "sgl", "transformers" (with sgl's cache, without its kernels), or
                 "auto": transformers if no family of sgl describes the architecture
    trust_remote_code  transformers may run Python code that comes with the checkpoint
    dummy        random weights in the model's shape; only its config.json is read
    seed         of the dummy weights, and of generations that have no seed
    strict       raise an error if a layer or its attention does not use this machine's fastest path
                 (`info()["slower"]`)
    tensor_parallel  so many processes, ranks, share the model out, each with some of the heads and of the networks'
                 width, and compute every step together: on GPUs each on its own GPU. Rank 0 runs in a process of the
                 engine, as with `process`, and the others in further ones
    pipeline_parallel  so many stages, each with some of the layers, compute a step one after the other, cut into
                 micro-batches so that several stages compute at the same time. A process each, with tensor_parallel so
                 many processes each; on GPUs with a GPU each
    expert_parallel  of mixtures of experts with tensor_parallel: each rank holds whole experts, instead of a part of
                 each one's width
    redundant_experts  with it: so many copies of experts in each layer, which share the rows of those that are chosen
                 most often
    rebalance_every  with it: after so many steps, experts move between ranks so that all have about as much to do, a
                 few between two steps; None: only when `engine.rebalance_experts()` asks for it
    expert_nodes  with it: so many groups of ranks that follow each other and reach each other faster than the rest.
                 Where a router chooses among groups of experts, each of these stays within one
    latent_attention  of models with latent attention (DeepSeek, Kimi, GLM) over the ranks of tensor_parallel: "heads":
                 each rank has some of the heads and reads the latents of every sequence; "rows": each has the weights
                 of attention whole and attends for some of a step's rows, so that it reads the latents of only its
                 sequences. All ranks store the latents of all tokens
    replicas     so many engines under this one, a process each: on GPUs each with its own GPU, on a CPU each with its
                 share of the threads. A new sequence goes where it would be done first, what is cached there counted
                 in, and its forks stay with it
    process      run the model in a separate process, which is restarted if it dies
    heartbeat    with `process`: seconds without a sign of life after which the process counts as hung, is killed and
                 restarted; ten times as long while loading, twenty times as long within one step; None: never
    grammar_process  compile grammars in a separate process, so that those that take long hold up no text: True all of
                 them; None on a CPU: once compiling has used a quarter of a second of a processor here; False: never.
                 On a GPU it was never tried: None is False there, and True an error
    poison_freed  fill freed pages with NaN so that reading a freed page shows up (for tests)
    """

    dtype: str = option("auto", choices="auto float32 bfloat16 float16")
    device: str = "auto"
    threads: int | None = option(
        None,
        range=(1, MOST_THREADS),
        must=f"a whole number up to {MOST_THREADS}; None takes as many as there are cores",
        also="n_threads num_threads",
    )
    context: int | None = option(
        None, also="max_model_len context_length max_seq_len max_seq_len_to_capture n_ctx num_ctx max_context_len"
    )
    page_size: int = option(1, also="block_size")
    kv_tokens: int | None = option(None, also="max_total_tokens")
    kv_memory: int | str | None = option(None, also="kv_cache_memory_bytes")
    host_kv: int | str = option(
        0, must="a size such as '4GB', or 0 for none", also="hicache_size kv_offloading_size swap_space"
    )
    kv_dtype: str = option("auto", choices="auto fp8")
    window_tokens: int | None = None
    states: int | None = None
    state_share: float = option(0.5, range=(SMALL, 1 - SMALL), must="a share above 0 and below 1, such as 0.5")
    state_every: int | None = None
    memory: float | None = option(None, range=(SMALL, 1), must="a share above 0 and up to 1, such as 0.8")
    expert_memory: int | str = option(
        "device", choices="device host", must="'device', 'host', or a size such as '40GB'"
    )
    adapters: Mapping[str, str | Path] | None = option(None, also="lora_paths lora_modules lora_adapters")
    adapter_slots: int | Mapping[int, int] | None = option(None, also="max_loras max_loras_per_batch")
    adapter_extras: int | str = "128MB"
    adapter_memory: int | str = option("4GB", also="max_cpu_loras")
    weights: str = option("auto", choices="auto fp8 fp8_block int8 int4 int4_hqq int4_gptq mxfp4 nvfp4")
    calibration: Any = None
    activations: str = option("dynamic", choices="dynamic maximum percentile")
    load_format: str = option("auto", choices="auto pt sharded_state")
    step_tokens: int | None = option(None, also="max_num_batched_tokens chunked_prefill_size max_prefill_tokens")
    prompt_seconds: float | None = option(None, range=(0, 1e9), hint=", 0 for no limit,")
    max_running: int | None = option(None, also="max_num_seqs max_running_requests")
    attention: str = option(
        "auto",
        must="'auto' or the name of a backend",
        also="attention_backend prefill_attention_backend decode_attention_backend",
    )
    graphs: bool = True
    run_ahead: bool | None = None
    deterministic: bool = option(False, also="enable_deterministic_inference")
    speculation: str | bool | dict[str, Any] = False
    draft: str | Path | None = option(None, also="speculative_draft_model_path speculative_model draft_model")  # noqa: RUF009
    jump_forward: bool = True
    json_options: dict[str, Any] | None = None
    tokenizer: str | Path | None = option(None, also="tokenizer_path")  # noqa: RUF009
    chat_template: str | None = None
    implementation: str = option("auto", choices="auto sgl transformers", also="model_impl")
    trust_remote_code: bool = False
    dummy: bool = False
    seed: int | None = option(None, range=(-WORD, 2 * WORD - 1), also="random_seed")
    strict: bool = False
    tensor_parallel: int = option(1, also="tp_size tp tensor_parallel_size")
    pipeline_parallel: int = option(1, also="pp_size pp pipeline_parallel_size")
    expert_parallel: bool = False
    redundant_experts: int = option(0, range=(0, WORD), also="ep_num_redundant_experts num_redundant_experts")
    rebalance_every: int | None = None
    expert_nodes: int = 1
    latent_attention: str = option("heads", choices="heads rows")
    replicas: int = option(1, also="dp_size dp data_parallel_size")
    process: bool = False
    heartbeat: float | None = option(30.0, range=(0.1, 1e9), hint=", None for no limit,", also="watchdog_timeout")
    grammar_process: bool | None = None
    poison_freed: bool = False

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                raise ConfigError(f"Engine has no option {name!r}; {option_meant(name, names)}")
        config = cls(**{name: native_dtype(value) for name, value in options.items()})
        config.validate()
        return replace(config, process=True) if max(config.ranks, config.replicas) > 1 else config

    def validate(self) -> None:
        """Raises ConfigError for a value that cannot be, and for options that do not go together on any device."""
        check(self)

    @property
    def ranks(self) -> int:
        """Processes that share the model out."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def ranks_text(self) -> str:
        """The beginning of errors about these options."""
        names = [name for name in ("tensor_parallel", "pipeline_parallel") if getattr(self, name) > 1]
        return f"Engine({', '.join(f'{name}={getattr(self, name)}' for name in names)}"

    @property
    def whole_experts(self) -> ExpertParallelSplit | None:
        """How experts are whole on ranks; None: each rank has a part of every one."""
        if not self.expert_parallel:
            return None
        from ..parallel.ep.expert_parallel_split import ExpertParallelSplit

        return ExpertParallelSplit(self.redundant_experts, self.expert_nodes, self.deterministic)

    @property
    def by_rows(self) -> bool:
        """Whether each rank attends for some rows of latent attention, with all heads, not for all with some heads."""
        return self.latent_attention == "rows"

    @property
    def parts(self) -> ParallelSizes:
        """What each of the ranks has."""
        return ParallelSizes(self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.redundant_experts)

    @property
    def changes_weights(self) -> bool:
        """Whether loaded projections become others: quantised, or such as do not depend on the step."""
        return self.weights != "auto" or self.deterministic

    def context_for(self, positions: int) -> int:
        """The longest sequence, for a model of so many positions. Raises ConfigError where more are asked for."""
        if self.context is not None and self.context > positions:
            raise ConfigError(
                f"context={self.context} is beyond the {positions} positions of the model (config.json); ask for less"
            )
        return self.context or positions

    @property
    def is_calibrated(self) -> bool:
        """Whether loading asks what flows through the model."""
        return self.weights in CALIBRATED or self.activations != "dynamic"

    @property
    def drafting(self) -> SpeculationOptions | None:
        """How it drafts; None: not at all."""
        return parse_speculation(self.speculation)

    @property
    def expert_budget(self) -> int | None:
        """Bytes of the device that experts may take; None: all are there."""
        if self.expert_memory in ("device", "host"):
            return None if self.expert_memory == "device" else 0
        return parse_memory(self.expert_memory, "expert_memory")

    @property
    def slots_by_rank(self) -> dict[int, int]:
        """What `adapter_slots` asks for."""
        asked = self.adapter_slots
        return {16: asked} if isinstance(asked, int) else dict(asked or {})

    @property
    def extras_room(self) -> int:
        """Bytes of a GPU that `adapter_extras` asks for, where there are slots."""
        return parse_memory(self.adapter_extras, "adapter_extras") if self.adapter_slots else 0

    def on(self, device: str) -> DeviceDefaults:
        """With everything settled that depends on the kind of device: "cpu", "cuda", ..."""
        gpu = device == "cuda"
        if self.weights in FORMS and device not in ("cpu", "cuda"):
            raise ConfigError(
                f"Engine(weights={self.weights!r}) is for the CPU and CUDA, here: {device}; use weights='auto'"
            )
        if self.weights == "fp8" and not gpu:
            raise ConfigError(
                f"Engine(weights='fp8') needs a CUDA device, here: {device}; on the CPU 'fp8_block' keeps float8 too, "
                "and 'int8' and 'int4' are faster"
            )
        if self.ranks > 1 and not (device == "cpu" or gpu):
            raise ConfigError(
                f"{self.ranks_text}) is for CUDA devices and the CPU, here: {device}; leave it out, or take "
                "device='cpu'"
            )
        if self.ranks > 1 and self.run_ahead and not gpu:
            raise ConfigError(
                f"{self.ranks_text}, run_ahead=True): on a CPU several ranks do not run ahead; leave one of them out"
            )
        if self.expert_parallel and gpu and (self.deterministic or self.weights != "auto"):
            other = "deterministic=True" if self.deterministic else f"weights={self.weights!r}"
            raise ConfigError(
                f"{self.ranks_text}, expert_parallel=True, {other}): not supported on GPUs; leave one of them out, or "
                "take device='cpu'"
            )
        if self.expert_budget is not None and not gpu:
            raise ConfigError(
                f"Engine(expert_memory={shown(self.expert_memory)}) is for CUDA devices, here: {device}, whose experts "
                "are in main memory anyway; leave it out"
            )
        if self.grammar_process and device != "cpu":
            raise ConfigError(
                f"Engine(grammar_process=True) is not supported on GPUs, here: {device}; leave it out, grammars are "
                "compiled in the engine's process"
            )
        values = {f.name: getattr(self, f.name) for f in fields(EngineConfig)}
        values["grammar_process"] = self.grammar_process if device == "cpu" else False
        values["step_tokens"] = self.step_tokens or (8192 if gpu else 1024)
        values["prompt_seconds"] = (0.05 if gpu else 0.5) if self.prompt_seconds is None else self.prompt_seconds
        values["max_running"] = self.max_running or (256 if gpu else 64)
        values["state_every"] = self.state_every or (2048 if gpu else 256)
        values["run_ahead"] = gpu and self.draft is None if self.run_ahead is None else self.run_ahead
        values["graphs"] = self.graphs and gpu
        values["jump_forward"] = self.jump_forward and not (self.drafting is not None and self.drafting.exact)
        if gpu and self.memory is None:
            values["memory"] = 0.92
        return DeviceDefaults(**values)

    def for_model(self, json_options: dict[str, Any]) -> EngineConfig:
        """With what the model says of JSON where the user says nothing."""
        return replace(self, json_options={**json_options, **(self.json_options or {})}) if json_options else self


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDefaults(EngineConfig):
    """The options on a known kind of device: what None left open is decided."""

    step_tokens: int
    prompt_seconds: float
    max_running: int
    run_ahead: bool
    state_every: int


@dataclass(frozen=True, slots=True)
class EngineArguments(EngineConfig):
    """What `Engine` takes: a model and the options."""

    model: str | Path | None = option(None, also="model_path model_id model_name model_name_or_path")  # noqa: RUF009


def option_meant(name: str, names: list[str]) -> str:
    """What to write for an option that there is not."""
    if own := [own for own, _, row in options_of(EngineArguments) if name in row.also]:
        return f"give {own[0]}="
    if name in SENTENCES:
        return SENTENCES[name]
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(names)}"
