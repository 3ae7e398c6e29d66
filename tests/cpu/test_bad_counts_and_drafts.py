"""Counts of processes and names of drafts that cannot be meant are refused before anything starts."""

from __future__ import annotations

import pytest

from sgl.runtime import Engine
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import ConfigError
from sgl.runtime.replicas.replicas_core import replica_options


@pytest.mark.parametrize("count", [5000, 10**6])
@pytest.mark.parametrize("threads", [None, 1])
def test_more_replicas_than_cpus_start_no_process(count, threads):
    with pytest.raises(ConfigError, match=rf"replicas={count}.*CPUs"):
        replica_options(
            EngineConfig(device="cpu", replicas=count, threads=threads)
        )  # never by Engine: it would start them all if this broke


@pytest.mark.parametrize("name", ["replicas", "tensor_parallel", "pipeline_parallel"])
def test_a_count_of_processes_is_not_left_open(name):
    with pytest.raises(ConfigError, match=rf"{name}=None\): must be a positive"):
        Engine(**{name: None})


@pytest.mark.parametrize("draft", ["", "  ", "MTP", "Mtp"])
def test_a_draft_that_names_nothing_is_refused_by_its_value(draft):
    with pytest.raises(ConfigError, match=rf"draft='{draft}'.*'mtp'"):
        Engine(draft=draft, speculation="auto")
