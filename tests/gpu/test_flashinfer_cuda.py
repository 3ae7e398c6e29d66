"""flashinfer's attention against a softmax written out, eagerly and inside CUDA graphs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="needs flashinfer"),
]

SHAPES = {"group 4": (32, 8, 128), "group 7": (14, 2, 128)}  # one head_dim: each is compiled


def made(shape=(32, 8, 128), windows=(None, None), page_size=1, pages=40000, dtype=torch.bfloat16, running=256):
    from attention_steps import World

    from sgl.runtime.attention import AttentionShape
    from sgl.runtime.attention.flashinfer_attention import FlashInferAttention

    geometry = AttentionShape(*shape, windows)
    world = World(geometry, pages // page_size, page_size, 80, 5000 // page_size + 2, dtype, "cuda")
    return world, FlashInferAttention(world.pool, geometry, page_size, max_running=running, context=5000)


def check(world, attention, batch, layers=(0,)):
    attention.plan(batch)
    world.embed(batch)
    for layer in layers:
        q = world.queries(batch, torch.bfloat16)
        found = attention.attend(q, q, q, layer, batch)
        close(found, world.expected(batch, q, layer))


def close(found, expected):
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("shape, page_size", [(SHAPES["group 4"], 1), (SHAPES["group 4"], 16), (SHAPES["group 7"], 1)])
def test_mixed_batches(shape, page_size):
    world, attention = made(shape, page_size=page_size)
    for new, contexts in (
        ([1, 1, 1, 7, 33], [400, 1, 3000, 7, 2033]),
        ([1] * 9, [1, 2, 15, 16, 17, 100, 1000, 3000, 4999]),
        ([512, 300, 130], [512, 900, 130]),
        ([1, 600], [50, 2000]),
    ):
        batch = world.batch([world.sequence(n) for n in contexts], new)
        check(world, attention, batch, layers=(0, 1))


def test_windows():
    world, attention = made(windows=(None, 100))
    check(world, attention, world.batch([world.sequence(n) for n in (900, 50, 2000, 400)], [1, 1, 40, 300]), range(2))
    check(world, attention, world.batch([world.sequence(n) for n in (1900, 50, 101)], [1, 1, 1]), range(2))


def test_float8_keys():
    from sgl.runtime.layers.float8_reference import KVScaleFactors

    world, attention = made(dtype=torch.float8_e4m3fn)
    world.pool.scales = [KVScaleFactors(0.5 + layer, 2.0 / (1 + layer)) for layer in range(len(world.pool.scales))]
    check(world, attention, world.batch([world.sequence(n) for n in (900, 50, 2000, 400)], [1, 1, 40, 300]))
    check(world, attention, world.batch([world.sequence(n) for n in (1900, 50)], [1, 1]))


def captured(attention, q, batch):
    """What a graph of layer 0 writes, and the graph; `batch` has been planned."""
    attention.attend(q, q, q, 0, batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.attend(q, q, q, 0, batch)
    return out, graph


def same_tensors(batch, around):
    """The new batch in the tensors of the captured one, as the runner does it."""
    for name in ("slots",):
        getattr(around, name).copy_(getattr(batch, name))
        setattr(batch, name, getattr(around, name))
    for name in ("rows", "starts", "contexts", "token_rows"):
        getattr(around.device, name).copy_(getattr(batch.device, name))
        setattr(batch.device, name, getattr(around.device, name))
    return batch


@pytest.mark.parametrize("running", [1, 64])
def test_graphs_of_decodes_need_no_plan(running):
    world, attention = made(running=running if running == 1 else 256)
    first = world.batch([world.sequence(5)], [1], pad_to=running)
    attention.plan(first)
    world.embed(first)
    q = world.queries(first, torch.bfloat16)
    out, graph = captured(attention, q, first)
    for round in range(6):
        count = max(1, running - round)
        lengths = world.random.integers(1, [40, 500, 30, 4000 // count + 2, 5, 300][round], count)
        slots = [world.sequence(int(n)) for n in lengths]
        batch = same_tensors(world.batch(slots, [1] * count, pad_to=running), first)
        attention.plan(batch)
        assert attention.variant(batch) is None
        world.embed(batch)
        q.copy_(world.queries(batch, torch.bfloat16))
        graph.replay()
        close(out[:count], world.expected(batch, q, 0)[:count])
        for own in slots:
            world.free.extend(own // world.page_size)


def test_shared_prefixes_in_graphs():
    world, attention = made(pages=60000)
    prefix = world.sequence(3000)
    graphs = {}
    for round in range(4):
        members = [world.sequence(3001 + round + 3 * n, prefix[: 3000 - 500 * (round == 2)]) for n in range(20)]
        others = [world.sequence(700), world.sequence(2)]
        batch = world.batch([*others, *members], [1] * 22, pad_to=32)
        attention.plan(batch)
        key = attention.variant(batch)
        assert key == "shared prefix"
        world.embed(batch)
        if key not in graphs:
            q = world.queries(batch, torch.bfloat16)
            graphs[key] = *captured(attention, q, batch), batch, q
        out, graph, around, q = graphs[key]
        if batch is not around:
            batch = same_tensors(batch, around)
            attention.plan(batch)
        q.copy_(world.queries(batch, torch.bfloat16))
        graph.replay()
        close(out[:22], world.expected(batch, q, 0)[:22])
        check(world, attention, world.batch([*members, world.sequence(600)], [1] * 20 + [70]))
        for own in [*others, *(row[3000:] for row in members)]:
            world.free.extend(own[own >= 1])


def test_plans_may_run_ahead_of_the_device():
    """Three steps are queued behind a long kernel before the first of them runs."""
    world, attention = made()
    lengths = [[1, 500, 30], [900, 2, 2], [7, 7, 2500]]
    batches = [world.batch([world.sequence(n) for n in own], [1, 2, 2]) for own in lengths]
    queries = [world.queries(batch, torch.bfloat16) for batch in batches]
    expected = [world.expected(batch, q, 0) for batch, q in zip(batches, queries, strict=True)]
    tables = []
    for batch in batches:  # each step's own table: `World` knows the last only
        table = world.table.clone()
        rows = batch.device.rows.tolist()
        for row, own in zip(rows, batch.context_slots, strict=True):
            table[row, : len(own)] = torch.from_numpy(own).cuda()
        batch.device.table = table
        tables.append(table)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    found = []
    for batch, q in zip(batches, queries, strict=True):
        attention.plan(batch)
        found.append(attention.attend(q, q, q, 0, batch))
    for out, wanted in zip(found, expected, strict=True):
        close(out, wanted)
