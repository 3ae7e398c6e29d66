"""What an engine of several ranks has in addition: the other ranks, and what they receive while it is built."""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..attention import attention_backend
from ..attention.attention_layout import listed
from ..attention.backend_protocols import AttentionLayout
from ..cache.multi_width_kv_pools import Pool
from ..cache.recurrent_state_memory import StateShapes
from ..errors import ConfigError
from ..executor.device_choice import DeviceChoice, apply_threads
from ..executor.ranks.rank_steps import gpu_progress
from ..executor.runner_protocol import Runner
from ..executor.warmup import longest_step
from ..executor.weight_offload import collect_garbage
from ..loading.load_plan import LoadPlan
from ..models.decoder import Decoder
from ..models.describe.explain_executors import LayerGroup
from ..models.spec.model_spec import ModelSpec
from ..parallel.ep.expert_balance import ExpertBalancer
from ..parallel.ep.expert_migration import ExpertMigrator
from ..parallel.ep.expert_parallel_split import require_kernels, require_same_options
from ..parallel.workers.gpu_progress import GpuProgress
from ..parallel.workers.rank_weights import RankWeights
from ..parallel.workers.worker_channel import RankKVOptions, RankStart
from ..parallel.workers.worker_group import RankGroup
from ..quantization import Transform
from .engine_config import DeviceDefaults, EngineConfig
from .memory_plan import MemoryPlan, stored_dtype

if TYPE_CHECKING:
    from ..parallel.cuda_collectives import CudaCollectives


class RanksBuilder:
    """The ranks are started at once, and load while rank 0 does.

    part: rank 0's.  ranks, progress: on GPUs, with whom rank 0 computes and how far it is, once loaded.

    experts: where they are whole on ranks, once loaded.
    """

    ranks: CudaCollectives | None = None
    progress: GpuProgress
    experts: ExpertBalancer | None = None
    part: RankWeights

    def __init__(self, team: RankGroup, config: DeviceDefaults, choice: DeviceChoice, path: Path) -> None:
        self.team, self._config, self._choice, self._path = team, config, choice, path
        # on GPUs, of each of the others: bytes that were free, and of its weights
        self._gpus_of_ranks: list[tuple[int, int]] = []
        self._weights: list[int] = []  # on CPUs, of each of the others

    def load(self, config: DeviceDefaults, transform: Transform | None, context: int, seed: int | None) -> Decoder:
        """Rank 0's share, which computes with the others'."""
        model = self._begin(config, transform, context, seed)
        if self._choice.device.type == "cuda":
            self._compare_gpus(model, config)
        else:
            self.part.sums = self.team.meet()
            self.part.join(model)
            if config.expert_parallel:
                self.experts = ExpertBalancer(self.team, ExpertMigrator(model, 0, self.team.size), self.team.size)
            self._met()
        return model

    def _met(self) -> None:
        """On CPUs: all have loaded."""
        self._weights = [pickle.loads(each) for each in self.team.wait()]

    def _begin(
        self, config: DeviceDefaults, transform: Transform | None, context: int, seed: int | None, stages: int = 1
    ) -> Decoder:
        """Rank 0's part, while the others load theirs."""
        choice = self._choice
        self._set_environment()
        begin = RankStart(
            0,
            self.team.size,
            "",
            str(self._path),
            choice.dtype,
            choice.device,
            choice.threads,
            context,
            config.load_format,
            seed,
            config.weights,
            config.deterministic,
            stages,
            config.whole_experts,
            config.by_rows,
        )
        self.part = RankWeights(begin, transform)
        self.team.begin(begin)
        self._model = model = self.part.load()
        self._layout = model.config.attention
        if choice.device.type == "cuda" and config.expert_parallel:
            require_kernels(model, config.ranks_text)
        return model

    def plan(self, model: Decoder, path: Path) -> tuple[LoadPlan, int]:
        """Every rank settles what it will load of another checkpoint: rank 0's plan, and bytes of all.

        Raises what one of them finds wrong, and nothing is another then.
        """
        plan = self.part.plan(model, self.part.opened(path))
        return plan, plan.bytes + sum(self.team.ask("plan", path))

    def let_go(self, runner: Runner) -> None:
        """Before other weights are loaded: what is kept of those of before, on all ranks. runner: rank 0's."""
        if self.experts is not None:
            self.experts.let_go()
        if self.ranks is None:
            self.team.sleep()
            runner.release()
        else:
            self.team.ask("let_go", meanwhile=runner.release)
            collect_garbage()

    def fill(self, model: Decoder) -> None:
        """Every rank loads that. Raises what one of them could not do, when all are done."""
        self.team.ask("fill", meanwhile=lambda: self.part.fill(model))

    def _set_environment(self) -> None:
        if self._choice.device.type == "cuda":
            from ..parallel.cuda_collectives import set_environment  # needs Triton

            set_environment()

    def _compare_gpus(self, model: Decoder, config: DeviceDefaults, stages: int = 1) -> None:
        from ..parallel.cuda_collectives import CudaCollectives

        choice, self.progress = self._choice, gpu_progress()
        self.ranks = CudaCollectives(
            0,
            self.team.size,
            self.team.meeting,
            choice.device,
            model.config.hidden_size,
            choice.dtype,
            config.deterministic,
            stages,
        )
        self.part.sums = self.ranks if self.ranks.ranks > 1 else None
        self.part.join(model)
        if config.expert_parallel:
            with torch.cuda.device(choice.device):
                self.experts = ExpertBalancer(self.team, ExpertMigrator(model, 0, self.team.size), self.team.size)
            require_same_options(self.experts.fixed, config.ranks_text)
        self._gpus_of_ranks = [pickle.loads(each) for each in self.team.wait()]

    def watch_steps(self) -> None:
        """No step compiles anything for long from now on: one that is not done in time hangs."""
        self.team.watch_steps(self.progress)

    def measuring(self) -> AbstractContextManager[None]:
        """Rank 0 computes alone within."""
        return nullcontext() if self.ranks is None else self.ranks.measuring()

    def planned(self, plan: MemoryPlan) -> MemoryPlan:
        """On GPUs by the GPU that has least room, on CPUs of all ranks together."""
        plan = replace(plan, weights=plan.weights + sum(self._weights))
        for free, weights in self._gpus_of_ranks:
            plan = replace(plan, free=min(plan.free, free), weights=max(plan.weights, weights))
        if self.experts is not None and self.ranks is not None:
            plan = replace(plan, reserved=plan.reserved + self.experts.staged)
        return plan

    def layers_on_other_stages(self) -> tuple[LayerGroup, ...]:
        """Waits until the others have room. Who computes layers that rank 0 has no part of."""
        return self._elsewhere(self.team.wait())

    def _elsewhere(self, received: list[bytes]) -> tuple[LayerGroup, ...]:
        """received: from each of the others, what computes its layers, pickled."""
        return ()

    def other_bytes(self) -> int:
        """Bytes a token that other ranks store, of the memory that rank 0 shares out: on GPUs each has its own GPU."""
        return (
            0
            if self.ranks is not None
            else (self.team.size - 1) * self._layout.bytes_per_slot(stored_dtype(self._config, self._choice.dtype))
        )

    def layouts(self) -> list[AttentionLayout]:
        """On GPUs, where they differ: of what each GPU stores, rank 0's first."""
        return []

    def elsewhere(self, pool: Pool) -> int:
        """Bytes that the other ranks store of a token. pool: rank 0's."""
        return pool.bytes // pool.slots * (self.team.size - 1)

    def stored(self, plan: MemoryPlan, pool: Pool) -> MemoryPlan:
        """With the keys and values of the others, where they are in the same memory. pool: rank 0's."""
        return plan if self.ranks is not None else replace(plan, kv=plan.kv + self.elsewhere(pool) * pool.slots)

    def states(self, own: StateShapes) -> StateShapes:
        """What the layers of all ranks keep, on GPUs those of the GPU that keeps most. own: those of rank 0's."""
        return own if self.ranks is not None else self.part.whole.states

    def make_room(
        self, config: DeviceDefaults, pool: Pool, context: int, states: int = 0, window_tokens: int = 0
    ) -> None:
        """states: slots of them.  window_tokens: see `SlidingWindowPlan`."""
        dtype, capture = stored_dtype(config, self._choice.dtype), self._model.capture
        if config.attention != "auto" or config.deterministic:
            self._require_attention(config, pool, context, window_tokens)
        room = RankKVOptions(
            pool.slots,
            dtype,
            config.attention,
            config.page_size,
            config.max_running,
            context,
            config.deterministic,
            states,
            config.graphs and capture is None,
            longest_step(config.step_tokens, config.max_running),
            None if capture is None else capture.layers,
            window_tokens and window_tokens + config.page_size,
        )
        self.team.make_room(room)
        self._link(room.tokens)

    def _require_attention(self, config: DeviceDefaults, pool: Pool, context: int, window_tokens: int) -> None:
        """Raises ConfigError for a backend that cannot run, before the others would end over it."""
        layout = self._layout.apart(context) if window_tokens else self._layout
        attention_backend(
            config.attention,
            pool,
            layout,
            page_size=config.page_size,
            max_running=config.max_running,
            context=context,
            deterministic=config.deterministic,
            dtype=self._model.dtype,
        )

    def _link(self, tokens: int) -> None:
        """With the others, while they make room."""

    def describe(self, model: ModelSpec, info: dict[str, Any]) -> dict[str, Any]:
        """What `Engine.info` says of all ranks together. model: the whole one."""
        pids = [info["pid"], *(member.child.pid for member in self.team.members)]
        whole = Decoder(model, self._choice.dtype, "meta")
        return (
            {
                "tensor_parallel": self._config.tensor_parallel,
                "latent_attention": self._config.latent_attention,
                "rank_pids": pids,
                "parameters": whole.parameter_count,
                "kv_bytes": info["kv_bytes"] * self.team.size,
                "state_bytes": info["state_bytes"] * self.team.size,
            }
            | self._describe_sums()
            | self._describe_experts()
        )

    def _describe_experts(self) -> dict[str, Any]:
        if self.experts is None:
            return {"expert_parallel": False}
        return {
            "expert_parallel": True,
            "redundant_experts": self._config.redundant_experts,
            "fixed_experts": listed(self.experts.fixed),
        }

    def renewed(self) -> dict[str, Any]:
        """What of that is another since weights were loaded anew."""
        if self.experts is None:
            return {}
        self.experts.look()
        return {"fixed_experts": listed(self.experts.fixed)}

    def _describe_sums(self) -> dict[str, Any]:
        return {} if self.ranks is None else {"sums_over_ranks": self.ranks.describe_collective()}


def share_out_ranks(choice: DeviceChoice, options: EngineConfig) -> DeviceChoice:
    """With as many threads as each rank gets, where the options do not say how many."""
    if choice.device.type == "cuda":
        return on_gpus(choice, options)
    if options.threads is not None:
        return choice
    threads = max(1, choice.threads // options.ranks)
    apply_threads(threads)
    return replace(
        choice, threads=threads, reasons=(*choice.reasons, f"threads {threads} for each of {options.ranks} ranks")
    )


def on_gpus(choice: DeviceChoice, options: EngineConfig) -> DeviceChoice:
    """With the first of as many GPUs as there are ranks, which follow each other.

    Raises ConfigError where there are fewer.
    """
    first = torch.cuda.current_device() if choice.device.index is None else choice.device.index
    if (there := torch.cuda.device_count()) < first + options.ranks:
        raise ConfigError(
            f"{options.ranks_text}, device={options.device!r}): torch sees {there} CUDA devices, where each rank "
            f"takes one, from cuda:{first} on; take fewer ranks, or device='cpu'"
        )
    return replace(choice, device=torch.device("cuda", first))
