"""What every process of an engine begins with, as it was when the engine was opened."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sgl.common.child_process.child_process import ChildProcess, child_environment
from sgl.common.child_process.message_channel import frame

from ..build.engine_config import EngineConfig
from ..errors import ConfigError
from .process_messages import MESSAGE, StartMessage

ENGINE, SEVERAL = (
    "sgl.runtime.process.engine_worker",
    "sgl.runtime.parallel.workers.worker_processes",
)  # what the process runs
BEAT = 1.0  # seconds between two signs of life, less where the limit is short


class ProcessStart(NamedTuple):
    """message: the first one.  ranks: of the engine.  beat: see `ChildProcess`."""

    environment: dict[str, str]
    message: bytes
    ranks: int
    beat: float

    @classmethod
    def here(cls, path: Path, options: EngineConfig, environment: Mapping[str, str] | None = None) -> ProcessStart:
        """environment: what is another there. Raises ConfigError where there is no Python that could be started."""
        if getattr(sys, "frozen", False) or not sys.executable:
            raise ConfigError(
                "process=True starts a Python interpreter, which a frozen program lacks; leave it out here"
            )
        return cls(
            child_environment(**(environment or {})),
            frame(MESSAGE, pickle.dumps(StartMessage(os.path.abspath(path), options))),
            options.ranks,
            BEAT if options.heartbeat is None else min(BEAT, options.heartbeat / 4),
        )

    def child(self) -> ChildProcess:
        """Where there are other ranks, their processes begin together with this one."""
        module, arguments = (ENGINE, ()) if self.ranks == 1 else (SEVERAL, (self.ranks,))
        return ChildProcess(module, *arguments, beat=self.beat, environment=self.environment)
