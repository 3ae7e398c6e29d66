"""What an engine of several ranks has beside another: who the others are, and what they are told while it is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cache.pools import Pool
from ..cache.states import StateShapes
from ..errors import ConfigError
from ..executor.device import DeviceChoice, apply_threads
from ..models.decoder import Decoder
from ..models.explain import Layers
from ..models.spec import Model
from ..parallel.line import Begin, Room
from ..parallel.ranks import joined
from ..parallel.share import load_share
from ..parallel.split import Split
from ..parallel.team import Team
from ..quantization import Transform
from .config import EngineConfig, Resolved
from .memory import stored_dtype


class RanksSide:
    """The ranks are started at once, and load while rank 0 does."""

    def __init__(self, team: Team, config: Resolved, choice: DeviceChoice, path: Path) -> None:
        self.team, self._config, self._choice, self._path = team, config, choice, path
        self._rows: list[bytes] = []  # of each of the others, who computes its layers

    def load(self, config: Resolved, transform: Transform | None, context: int, seed: int | None) -> Decoder:
        """Rank 0's share, which computes with the others'."""
        choice, ranks = self._choice, self.team.size
        self.team.begin(Begin(0, ranks, "", str(self._path), choice.dtype, choice.device, choice.threads, context, config.load_format, seed, config.weights, config.deterministic))
        model = load_share(self._path, choice.dtype, choice.device, Split(0, ranks), seed, transform, context, config.load_format)
        if any(scale is not None for scale in model.kv_scales) and config.kv_dtype == "fp8":
            raise ConfigError(f"Engine(tensor_parallel={ranks}, kv_dtype='fp8'): the checkpoint's scales of keys and values are not shared out; leave kv_dtype at 'auto'")
        joined(model, self.team.meet())
        self.team.wait()
        return model

    def layers_elsewhere(self) -> tuple[Layers, ...]:
        """Who computes layers that rank 0 has no part of."""
        return ()

    def beside(self) -> int:
        """Bytes a token that other ranks store, of the memory that rank 0 shares out."""
        return 0

    def states(self, own: StateShapes) -> StateShapes:
        """What the layers of all stages keep. own: those of rank 0's."""
        return own

    def make_room(self, config: Resolved, pool: Pool, context: int, states: int = 0) -> None:
        """states: slots of them."""
        dtype = stored_dtype(config, self._choice.dtype)
        self._rows = self.team.make_room(Room(pool.slots, dtype, config.attention, config.page_size, config.max_running, context, config.deterministic, states))

    def told(self, model: Model, info: dict[str, Any]) -> dict[str, Any]:
        """What `Engine.info` says of all ranks together. model: the whole one."""
        pids = [info["pid"], *(member.process.pid for member in self.team.members)]
        whole = Decoder(model, self._choice.dtype, "meta")
        return {"tensor_parallel": self._config.tensor_parallel, "rank_pids": pids, "parameters": whole.parameter_count, "kv_bytes": info["kv_bytes"] * self.team.size}


def shared_out(choice: DeviceChoice, options: EngineConfig) -> DeviceChoice:
    """With as many threads as each rank gets, where nobody says how many."""
    if options.ranks == 1 or options.threads is not None:
        return choice
    threads = max(1, choice.threads // options.ranks)
    apply_threads(threads)
    return replace(choice, threads=threads, reasons=(*choice.reasons, f"threads {threads} for each of {options.ranks} ranks"))
