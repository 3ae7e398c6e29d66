"""The engine's options, checked by name and by value."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..loading.state import Parts
from ..parallel.whole_experts import WholeExperts
from ..quantization import ACTIVATIONS
from ..quantization.forms import CALIBRATED, FORMS
from ..speculative.options import Drafting, drafting_of
from ..values import WORD, real, shown, whole

CHOICES = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "kv_dtype": ("auto", "fp8"),
    "weights": ("auto", "fp8", "fp8_block", "int8", "int4", "int4_hqq", "int4_gptq", "mxfp4", "nvfp4"),
    "activations": tuple(ACTIVATIONS),
    "load_format": ("auto", "pt", "sharded_state"),
    "implementation": ("auto", "sgl", "transformers"),
    "latent_attention": ("heads", "rows"),
}
COUNTS = ("page_size", "tensor_parallel", "pipeline_parallel", "replicas", "expert_nodes")  # nothing is chosen for who leaves them open
MOST_THREADS = 4096  # of a process: far more than that, and the libraries below end it
BATCH_DEPENDENT = ("flashinfer", "torch_native")  # attention whose bits depend on the other sequences of a step


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of `Engine`.

    dtype        "float32", "bfloat16", "float16" or "auto": measured on the CPU, bfloat16 on a GPU that has it
    device       "auto", "cpu", "cuda", "cuda:1" ...
    threads      CPU threads; None: the usable physical cores
    context      longest sequence in tokens; None: the model's own limit
    page_size    token slots of a KV page
    kv_tokens    size of the KV pool in tokens; None: from kv_memory
    kv_memory    size of the KV pool, bytes or text such as "2GB"; None: from memory
    host_kv      main memory for prefixes that the pool has no room for, bytes or text such as "4GB"; 0: they are dropped
    kv_dtype     format of the stored keys and values: "auto" (as dtype), or "fp8": half of bfloat16's bytes, less precise;
                 divided by the checkpoint's scales where it has some, otherwise as they are
    window_tokens  of models with layers that see a window only: tokens that these have rows for, with kv_tokens; behind a
                 window they are given back. None: a share of kv_tokens by what texts of a typical length need; as many as
                 kv_tokens: all layers keep all tokens
    states       of models with recurrent layers: how many states there are, for running sequences and for cached prefixes;
                 None: from state_share
    state_share  of such models: share of the KV memory that goes to states, as far as they are of use
    state_every  of such models: tokens between the states that a long prompt leaves for others that begin with the same tokens;
                 None: 256 on the CPU, 2048 on a GPU
    memory       share of the free memory that weights, activations and KV may use together; None: 0.92 on a GPU;
                 on the CPU the KV pool takes a quarter of the free memory, up to 131,072 tokens
    expert_memory  of mixtures of experts on a GPU: "device"; "host": their weights lie in main memory, and a step brings over those that it
                 chooses; or bytes, also as text such as "40GB", for the experts of the first layers, the others lying in main memory
    adapters     LoRA adapters to load at the start: directories of PEFT's by name, as `engine.adapters.load` takes them
    adapter_slots  how many adapters lie on the device at a time: a number, for ranks up to 16, or numbers by rank, such as {16: 8, 64: 2}.
                 None: 8 of each rank that is loaded, on a CPU; none on a GPU, whose memory must be set aside at the start
    adapter_extras  on a GPU, of its memory, what is set aside beside the slots for what adapters have beside pairs of projections: whole tables, pairs
                 of experts, factors and biases; bytes or text such as "2GB"
    adapter_memory  main memory for adapters, bytes or text such as "4GB"; those that were used least recently are dropped, and read
                 again from their files when they are wanted
    weights      "auto" (as stored, in dtype), or quantised while loading. In 8 bits: "int8", "fp8" on a GPU, "fp8_block" with
                 a scale for each 128 x 128. In 4 bits: "int4", "int4_hqq", which loses less quality and takes longer to load,
                 "int4_gptq", which loses least and needs `calibration`, and the small floats "nvfp4" and "mxfp4"
    calibration  what flows through the model while it is quantised: a list of texts, conversations (lists of messages) or token
                 ids like those that the model is for; a .txt or .jsonl file of them; or a function that gets an engine of the
                 unquantised model and runs programs on it, whose texts are taken: `lambda engine: ask.run(..., backend=engine)`
    activations  scales of the inputs of "fp8" products: "dynamic", each row's own; or one that `calibration` found, of the
                 largest magnitude ("maximum") or of that which all but 0.01 % stay below ("percentile")
    load_format  "auto": safetensors, GGUF or what `sgl shard` wrote; "sharded_state": only the last; "pt": also pickled .bin and
                 .pt files where there are no safetensors; only tensors are read from them, and none of their code runs
    step_tokens  token budget of one step; None: 1024 on the CPU, 8192 on a GPU
    prompt_seconds  how long prompts may hold up a step in which others stream their text: they are cut to what was measured to
                 take so long, 256 tokens at least; None: 0.05 on a GPU, 0.5 on the CPU; 0: as long as they take
    max_running  sequences computed in one step at most; None: 64 on the CPU, 256 on a GPU
    attention    "auto" or the name of a backend
    graphs       on a GPU: replay decode-only steps as CUDA graphs
    run_ahead    start a step before the previous step's results are read; None: only on a GPU, and not with `draft`
    deterministic  the same bits for a request whatever else is running, at the cost of speed
    speculation  "auto": guess tokens from what was written before (in the text, its prompt, finished texts of its namespace, and in the same
                 state of a grammar) and compute them together; the sampler keeps those that it would have chosen, so the text is the
                 same. As many as are measured to pay; steps with some do not run ahead. False: not at all. "exact": with deterministic=True,
                 where not a bit of a logit can change; and what a grammar forces is sampled too, with drafts in place of jump_forward.
                 A dict: {"drafters": [of "forced", "states", "suffix", "named"], "most": tokens of a draft, "learn": from finished
                 texts, "control": only what pays, "exact": as above}, each of which may be left out
    draft        with speculation: what guesses too, as `Engine` takes models. A smaller model with the same tokenizer; also an EAGLE
                 or EAGLE-3 head of the model, or "mtp" for the layer that its own checkpoint has for it. It has a KV pool of its own,
                 of as many tokens, in the same memory. None: nothing
    jump_forward append tokens that a grammar forces without sampling them (on a GPU: while few sequences run and it pays)
    json_options how JSON is written and read from schemas, see `sgl.grammars.SchemaOptions`; options left out come from
                 the model (`json_options` in its directory's `sgl.json`), otherwise from the defaults
    chat_template  replaces the checkpoint's: Jinja text, the path of a .jinja file, or the name of a known format
    implementation  the code that computes the model: "sgl", "transformers" (with sgl's cache, without its kernels), or
                 "auto": transformers if no family of sgl describes the architecture
    trust_remote_code  transformers may run Python code that comes with the checkpoint
    dummy        random weights in the model's shape; only its config.json is read
    seed         of the dummy weights, and of generations that have no seed of their own
    strict       raise an error if a layer or its attention does not use this machine's fastest path (`info()["slower"]`)
    tensor_parallel  so many processes, ranks, share the model out, each with some of the heads and of the networks' width, and compute every
                 step together: on GPUs each on a card of its own. They run in and beside a process of the engine's own, as with `process`
    pipeline_parallel  so many stages, each with some of the layers, compute a step one after the other, cut into micro-batches so that
                 several stages compute at the same time. A process each, with tensor_parallel so many processes each; on GPUs with a card each
    expert_parallel  of mixtures of experts with tensor_parallel: each rank holds whole experts, instead of a part of each one's width
    redundant_experts  with it: so many copies of experts in each layer, which share the rows of those that are chosen most often
    rebalance_every  with it: after so many steps, experts move between ranks so that all have about as much to do, a few between two steps; None: only
                 when `engine.rebalance_experts()` asks for it
    expert_nodes  with it: so many groups of ranks that follow each other and reach each other faster than the rest. Where a router chooses among groups of
                 experts, each of these stays within one
    latent_attention  of models with latent attention (DeepSeek, Kimi, GLM) over the ranks of tensor_parallel: "heads": each rank has some of the heads and
                 reads the latents of every sequence; "rows": each has the weights of attention whole and attends for some of a step's rows, so
                 that it reads the latents of its own sequences alone. All ranks store the latents of all tokens
    replicas     so many engines behind this one, a process each: on GPUs each with one of its own, on a CPU each with its share of the threads. A
                 new sequence goes where it would be done first, what is cached there counted in, and its forks stay with it
    process      run the model in a separate process, which is restarted if it dies
    heartbeat    with `process`: seconds without a sign of life after which the process counts as hung, is killed and
                 restarted; ten times as long while loading, twenty times as long within one step; None: never
    grammar_process  compile grammars in a process of their own, so that those that take long hold up nobody's text: True from the start;
                 None on a CPU: once compiling has taken as long here as the start of a process, a quarter of a second; False: never.
                 On a GPU it was never tried: None is False there, and True an error
    poison_freed fill freed pages with NaN so that reading a freed page shows up (for tests)
    """

    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    page_size: int = 1
    kv_tokens: int | None = None
    kv_memory: int | str | None = None
    host_kv: int | str = 0
    kv_dtype: str = "auto"
    window_tokens: int | None = None
    states: int | None = None
    state_share: float = 0.5
    state_every: int | None = None
    memory: float | None = None
    expert_memory: int | str = "device"
    adapters: Mapping[str, str | Path] | None = None
    adapter_slots: int | Mapping[int, int] | None = None
    adapter_extras: int | str = "128MB"
    adapter_memory: int | str = "4GB"
    weights: str = "auto"
    calibration: Any = None
    activations: str = "dynamic"
    load_format: str = "auto"
    step_tokens: int | None = None
    prompt_seconds: float | None = None
    max_running: int | None = None
    attention: str = "auto"
    graphs: bool = True
    run_ahead: bool | None = None
    deterministic: bool = False
    speculation: str | bool | dict[str, Any] = False
    draft: str | Path | None = None
    jump_forward: bool = True
    json_options: dict[str, Any] | None = None
    chat_template: str | None = None
    implementation: str = "auto"
    trust_remote_code: bool = False
    dummy: bool = False
    seed: int | None = None
    strict: bool = False
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    redundant_experts: int = 0
    rebalance_every: int | None = None
    expert_nodes: int = 1
    latent_attention: str = "heads"
    replicas: int = 1
    process: bool = False
    heartbeat: float | None = 30.0
    grammar_process: bool | None = None
    poison_freed: bool = False

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(names)}"
                raise ConfigError(f"Engine has no option {name!r}; {hint}")
        config = cls(**options)
        config.validate()
        return replace(config, process=True) if max(config.ranks, config.replicas) > 1 else config

    def validate(self) -> None:
        for name in ("page_size", "step_tokens", "max_running", "threads", "context", "kv_tokens", "window_tokens", "states", "state_every", "tensor_parallel", "pipeline_parallel", "replicas", "rebalance_every", "expert_nodes"):
            value = getattr(self, name)
            if (value is not None or name in COUNTS) and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < WORD):
                raise ConfigError(f"Engine({name}={shown(value)}): must be a positive whole number")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ConfigError(f"Engine(threads={self.threads}): a process takes {MOST_THREADS} at most; None takes as many as there are cores")
        if not isinstance(self.attention, str):
            raise ConfigError(f"Engine(attention={shown(self.attention)}): must be 'auto' or the name of a backend")
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"Engine({name}={shown(value)}): must be {', '.join(choices[:-1])} or {choices[-1]}")
        for name in ("graphs", "deterministic", "jump_forward", "dummy", "strict", "process", "trust_remote_code", "poison_freed", "expert_parallel"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"Engine({name}={shown(value)}): must be True or False")
        if self.seed is not None:
            whole("Engine(seed=...)", self.seed, -WORD, 2 * WORD - 1)
        drafting = drafting_of(self.speculation)
        if self.draft is not None and self.run_ahead:
            raise ConfigError("Engine(run_ahead=True, draft=...): a draft model guesses behind tokens that are known, before each step; leave one of them out")
        if drafting is not None and drafting.exact and not self.deterministic:
            raise ConfigError(
                f"Engine(speculation={shown(self.speculation)}): the same bits need deterministic=True as well, as several tokens in a step round otherwise "
                "than one; take that, or speculation='auto'"
            )
        if self.draft is not None and (drafting is None or not isinstance(self.draft, str | Path)):
            raise ConfigError(f"Engine(draft={shown(self.draft)}): must be 'mtp' or the directory or name of a model or head, and needs speculation='auto'")
        if isinstance(self.draft, str) and (not self.draft.strip() or (self.draft != "mtp" and self.draft.lower() == "mtp")):
            raise ConfigError(f"Engine(draft={shown(self.draft)}): must be 'mtp', as it stands here, or the directory or name of a model or head; None for no draft model")
        if self.run_ahead not in (None, True, False):
            raise ConfigError(f"Engine(run_ahead={shown(self.run_ahead)}): must be True, False or None")
        if self.grammar_process not in (None, True, False):
            raise ConfigError(f"Engine(grammar_process={shown(self.grammar_process)}): must be True, False or None")
        if self.deterministic and self.attention in BATCH_DEPENDENT:
            raise ConfigError(
                f"Engine(deterministic=True, attention={self.attention!r}): its sums depend on the other sequences of a step; "
                "use attention='auto', which takes 'triton' on a GPU and 'cpu' on the CPU"
            )
        if self.memory is not None and (not isinstance(self.memory, int | float) or not 0 < self.memory <= 1):
            raise ConfigError(f"Engine(memory={shown(self.memory)}): must be a share above 0 and up to 1, such as 0.8")
        if isinstance(self.state_share, bool) or not isinstance(self.state_share, int | float) or not 0 < self.state_share < 1:
            raise ConfigError(f"Engine(state_share={shown(self.state_share)}): must be a share above 0 and below 1, such as 0.5")
        if self.prompt_seconds is not None:
            real("Engine(prompt_seconds=...), 0 for no limit,", self.prompt_seconds, 0, 1e9)
        if self.heartbeat is not None:
            real("Engine(heartbeat=...), None for no limit,", self.heartbeat, 0.1, 1e9)
        if self.kv_memory is not None:
            parse_memory(self.kv_memory)
        if parse_memory(self.host_kv, "host_kv") < 0:
            raise ConfigError(f"Engine(host_kv={shown(self.host_kv)}): must be a size such as '4GB', or 0 for none")
        if (most := self.expert_budget) is not None and most < 0:
            raise ConfigError(f"Engine(expert_memory={shown(self.expert_memory)}): must be 'device', 'host', or a size such as '40GB'")
        self._check_ranks()
        self._check_latents()
        self._check_experts()
        self._check_adapters()
        self._check_calibration()
        self._check_json_options()
        self._check_chat_template()

    @property
    def ranks(self) -> int:
        """Processes that share the model out."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def ranks_asked(self) -> str:
        """The beginning of errors about these options."""
        names = [name for name in ("tensor_parallel", "pipeline_parallel") if getattr(self, name) > 1]
        return f"Engine({', '.join(f'{name}={getattr(self, name)}' for name in names)}"

    @property
    def whole_experts(self) -> WholeExperts | None:
        """How experts lie whole on ranks; None: each rank has a part of every one."""
        return WholeExperts(self.redundant_experts, self.expert_nodes, self.deterministic) if self.expert_parallel else None

    @property
    def by_rows(self) -> bool:
        """Whether each rank attends for some rows of latent attention, with all heads; otherwise for all rows, with some heads."""
        return self.latent_attention == "rows"

    @property
    def parts(self) -> Parts:
        """What each of the ranks has."""
        return Parts(self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.redundant_experts)

    @property
    def changes_weights(self) -> bool:
        """Whether loaded projections become others: quantised, or such as do not depend on the step."""
        return self.weights != "auto" or self.deterministic

    @property
    def is_calibrated(self) -> bool:
        """Whether loading asks what flows through the model."""
        return self.weights in CALIBRATED or self.activations != "dynamic"

    @property
    def drafting(self) -> Drafting | None:
        """How it drafts; None: not at all."""
        return drafting_of(self.speculation)

    @property
    def expert_budget(self) -> int | None:
        """Bytes of the device that experts may take; None: all lie there."""
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

    def on(self, device: str) -> Resolved:
        """With everything settled that depends on the kind of device: "cpu", "cuda", ..."""
        gpu = device == "cuda"
        if self.weights in FORMS and device not in ("cpu", "cuda"):
            raise ConfigError(f"Engine(weights={self.weights!r}) is for the CPU and CUDA, here: {device}; use weights='auto'")
        if self.weights == "fp8" and not gpu:
            raise ConfigError(f"Engine(weights='fp8') needs a CUDA device, here: {device}; on the CPU 'fp8_block' keeps float8 too, and 'int8' and 'int4' are faster")
        if self.ranks > 1 and not (device == "cpu" or gpu):
            raise ConfigError(f"{self.ranks_asked}) is for CUDA devices and the CPU, here: {device}; leave it out, or take device='cpu'")
        if self.ranks > 1 and self.run_ahead and not gpu:
            raise ConfigError(f"{self.ranks_asked}, run_ahead=True): on a CPU several ranks do not run ahead; leave one of them out")
        if self.expert_parallel and gpu and (self.deterministic or self.weights != "auto"):
            beside = "deterministic=True" if self.deterministic else f"weights={self.weights!r}"
            raise ConfigError(f"{self.ranks_asked}, expert_parallel=True, {beside}): not supported on GPUs; leave one of them out, or take device='cpu'")
        if self.expert_budget is not None and not gpu:
            raise ConfigError(f"Engine(expert_memory={shown(self.expert_memory)}) is for CUDA devices, here: {device}, whose experts lie in main memory anyway; leave it out")
        if self.grammar_process and device != "cpu":
            raise ConfigError(f"Engine(grammar_process=True) is not supported on GPUs, here: {device}; leave it out, grammars are compiled in the engine's process")
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
        return Resolved(**values)

    def for_model(self, json_options: dict[str, Any]) -> EngineConfig:
        """With what the model says of JSON where the user says nothing."""
        return replace(self, json_options={**json_options, **(self.json_options or {})}) if json_options else self

    def _check_ranks(self) -> None:
        if self.ranks == 1:
            return
        asked = self.ranks_asked
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            raise ConfigError(f"{asked}): this process is a rank of torchrun's, which would run the program once on each: start it by itself, the engine starts its ranks")
        wrong = [f"{name}={shown(getattr(self, name))}" for name, plain in (("expert_memory", "device"), ("implementation", "auto")) if getattr(self, name) not in (plain, "sgl")]
        if wrong:
            raise ConfigError(f"{asked}, {', '.join(wrong)}): not with several ranks; leave one of them out")
        if self.activations != "dynamic":
            raise ConfigError(f"{asked}, activations={self.activations!r}): no calibration with several ranks; leave activations at 'dynamic'")
        if self.is_calibrated:
            raise ConfigError(
                f"{asked}, weights={self.weights!r}): no calibration with several ranks: run sgl quantize MODEL OUT --weights {self.weights} --calibration FILE, "
                f"and open OUT with {self.parts}"
            )

    def _check_latents(self) -> None:
        if self.by_rows and self.tensor_parallel == 1:
            raise ConfigError("Engine(latent_attention='rows') shares rows out among the ranks of tensor_parallel, here 1: take tensor_parallel=2 or more, or leave it out")

    def _check_experts(self) -> None:
        whole("Engine(redundant_experts=...)", self.redundant_experts, 0, WORD)
        if not self.expert_parallel:
            more = [f"{name}={getattr(self, name)}" for name, plain in (("redundant_experts", 0), ("rebalance_every", None), ("expert_nodes", 1)) if getattr(self, name) != plain]
            if more:
                raise ConfigError(f"Engine({', '.join(more)}) is about experts that lie whole on ranks: take expert_parallel=True as well, or leave it out")
            return
        if self.tensor_parallel == 1:
            raise ConfigError("Engine(expert_parallel=True) shares experts out among the ranks of tensor_parallel, here 1: take tensor_parallel=2 or more")
        if self.pipeline_parallel > 1:
            raise ConfigError(f"{self.ranks_asked}, expert_parallel=True): not with stages; leave one of them out")
        if self.tensor_parallel % self.expert_nodes:
            raise ConfigError(f"Engine(tensor_parallel={self.tensor_parallel}, expert_nodes={self.expert_nodes}): ranks cannot be shared out among so many; take a number that divides them")

    def _check_adapters(self) -> None:
        if parse_memory(self.adapter_memory, "adapter_memory") < 0:
            raise ConfigError(f"Engine(adapter_memory={shown(self.adapter_memory)}): must be a size such as '4GB'")
        if parse_memory(self.adapter_extras, "adapter_extras") < 0:
            raise ConfigError(f"Engine(adapter_extras={shown(self.adapter_extras)}): must be a size such as '2GB'")
        asked = self.adapter_slots
        if not (asked is None or isinstance(asked, Mapping) or (isinstance(asked, int) and not isinstance(asked, bool))):
            raise ConfigError(f"Engine(adapter_slots={shown(asked)}): must be a number, or numbers by rank such as {{16: 8}}")
        for rank, count in self.slots_by_rank.items():
            whole(f"Engine(adapter_slots={shown(asked)}): a rank", rank, 1, 1024)
            whole(f"Engine(adapter_slots={shown(asked)}): a number of slots", count, 0, 4096)
        if self.adapters is not None and not (isinstance(self.adapters, Mapping) and all(isinstance(path, str | Path) for path in self.adapters.values())):
            raise ConfigError(f"Engine(adapters={shown(self.adapters)}): must be directories by name, such as {{'sql': 'adapters/sql'}}")
        if self.by_rows and (self.adapters or any(self.slots_by_rank.values())):
            raise ConfigError("Engine(latent_attention='rows'): no adapters are added to rows that ranks share out: take latent_attention='heads', or leave adapters and adapter_slots out")

    def _check_calibration(self) -> None:
        if self.activations != "dynamic" and self.weights != "fp8":
            raise ConfigError(
                f"Engine(activations={self.activations!r}) is for the products of weights='fp8', here: weights={self.weights!r}; leave it at 'dynamic'"
            )
        asked = f"weights={self.weights!r}" if self.weights in CALIBRATED else f"activations={self.activations!r}"
        if self.is_calibrated and self.calibration is None:
            raise ConfigError(
                f"Engine({asked}) needs texts to calibrate by: give calibration=[...] with texts or conversations like those that the "
                "model is for, the path of a .txt or .jsonl file of them, or a function that runs programs on the engine it gets"
            )
        if self.calibration is not None and not self.is_calibrated:
            raise ConfigError(
                f"Engine(calibration=...): nothing uses it with weights={self.weights!r}; leave it out, or take weights='int4_gptq'"
            )

    def _check_json_options(self) -> None:
        from sgl.grammars import GrammarError, SchemaOptions

        if not isinstance(self.json_options or {}, dict) or not all(isinstance(name, str) for name in self.json_options or {}):
            raise ConfigError(f"Engine(json_options={shown(self.json_options)}): must be a dict of options by their names, such as {{'order': 'any'}}")
        try:
            SchemaOptions.of(self.json_options or {})
        except GrammarError as error:
            raise ConfigError(f"Engine(json_options={self.json_options!r}): {error}") from error


    def _check_chat_template(self) -> None:
        from ..text.chat_files import given_source

        try:
            if self.chat_template is not None:
                given_source(self.chat_template)
        except ConfigError as error:
            raise ConfigError(f"Engine(chat_template={str(self.chat_template)[:80]!r}): {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(EngineConfig):
    """The options on a known kind of device: what None left open is decided."""

    step_tokens: int
    prompt_seconds: float
    max_running: int
    run_ahead: bool
    state_every: int


UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_memory(value: int | str, name: str = "kv_memory") -> int:
    """Bytes of `2000000`, `"2GB"`, `"512MiB"`. name: of the option, for the error."""
    if isinstance(value, int) and abs(value) < WORD:
        return value
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)\s*([KMG]?I?)B?\s*", shown(value).strip("'").upper())
    if not match or match[2] not in UNITS:
        raise ConfigError(f"{name}={shown(value)} is not a size; write bytes or a text such as '2GB' or '512MiB'")
    return int(float(match[1]) * UNITS[match[2]])


GROUPS = (  # of versions 2 and 1: where, the limit, what is used, and what of it are files
    ("/sys/fs/cgroup/", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int:
    """Bytes of main memory that this process may still take, the control group's limit included; files that were read and may be dropped count as free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as lines:
            fields_ = dict(line.split(":", 1) for line in lines)
        free = int(fields_["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    for folder, limit, used, files in GROUPS:
        try:
            with open(folder + limit) as a, open(folder + used) as b, open(f"{folder}memory.stat") as c:
                dropped = dict(line.split() for line in c).get(files, "0")
                free = min(free, int(a.read()) - int(b.read()) + int(dropped))
        except (OSError, ValueError):
            pass
    return max(0, free)
