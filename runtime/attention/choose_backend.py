"""Which backend attends: the one that is asked for, or the best one that runs here."""

from __future__ import annotations

import difflib
import importlib

import torch

from ..cache.kv_pool import KVPool
from ..cache.multi_width_kv_pools import Pool
from ..errors import ConfigError
from .attention_by_layer import AttentionByLayer
from .backend_protocols import AttentionBackend, AttentionLayout, AttentionShape, BackendUnavailable, UniformAttention
from .window_slot_attention import WindowSlotAttention

BEST = "best that runs here"

BACKENDS = {  # imported only once chosen: some need Triton or flashinfer
    "cpu": ("cpu.cpu_attention", "CpuAttention"),
    "torch_native": ("torch_native_attention", "TorchNativeAttention"),
    "triton": ("triton_attention", "TritonAttention"),
    "flashinfer": ("flashinfer_attention", "FlashInferAttention"),
}
OF_LATENTS = BACKENDS | {
    "cpu": ("cpu.cpu_mla_attention", "CpuMLAAttention"),
    "triton": ("triton_mla_attention", "TritonMLAAttention"),
}


def attention_backend(
    name: str, pool: Pool, layout: AttentionLayout | AttentionShape, **options: object
) -> AttentionBackend:
    """The backend called `name`, or with "auto" the best one that runs here, for each group of equal layers.

    pool: the result of `layout.pool`; a KVPool for a shape.
    options: for the constructors: page_size, max_running, context, deterministic; dtype, of the queries.
    Raises ConfigError for an unknown name, BackendUnavailable if the named one cannot run here.
    """
    if name != "auto" and name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known ones: auto, {', '.join(BACKENDS)}"
        raise ConfigError(f"no attention backend is called {name!r}; {hint}")
    if isinstance(layout, AttentionShape):
        return _for_group(name, pool.parts[0], layout, options)
    homes = [pool.parts[home] for home in layout.homes]
    plain = [_for_group(name, *of, options) for of in zip(homes, layout.groups, strict=True)]
    backends: list[UniformAttention] = [
        WindowSlotAttention(backend) if layout.is_windowed(group) else backend for group, backend in enumerate(plain)
    ]
    alone = (
        len(backends) == 1 and None not in layout.layers and not layout.windowed
    )  # it counts layers as the model does
    return backends[0] if alone else AttentionByLayer(pool, layout, backends)


def _for_group(name: str, pool: KVPool, shape: AttentionShape, options: dict[str, object]) -> UniformAttention:
    order = _order(pool, bool(options.get("deterministic")))
    if name == "auto":
        return _best(order, pool, shape, options) if len(order) > 1 else _only(order[0], pool, shape, options)
    asked = [] if name == order[0] else [f"attention={name!r} was asked for"]
    return _explained(_build(name, pool, shape, options), "asked for", [], asked)


def _order(pool: KVPool, deterministic: bool) -> list[str]:
    """Best first. flashinfer has no float32; its bits and torch's depend on the rest of the batch."""
    if not pool.k.is_cuda:
        return ["cpu"] if deterministic else ["cpu", "torch_native"]
    if deterministic:
        return ["triton"]
    return ["triton", "torch_native"] if pool.k.dtype == torch.float32 else ["flashinfer", "triton", "torch_native"]


def _best(order: list[str], pool: KVPool, shape: AttentionShape, options: dict[str, object]) -> UniformAttention:
    missing: list[str] = []
    for name in order[:-1]:
        try:
            return _explained(_build(name, pool, shape, options), BEST, missing, missing)
        except BackendUnavailable as error:
            missing.append(f"no {name}: {error}")
    return _explained(_build(order[-1], pool, shape, options), BEST, missing, missing)


def _only(name: str, pool: KVPool, shape: AttentionShape, options: dict[str, object]) -> UniformAttention:
    """The one backend with bits that do not depend on the batch."""
    try:
        return _explained(_build(name, pool, shape, options), BEST, [], [])
    except BackendUnavailable as error:
        why = str(error).partition("; use")[0]
        raise ConfigError(
            f"Engine(deterministic=True): {why}, and no other attention has such bits; run it without deterministic"
        ) from error


def _explained(backend: UniformAttention, why: str, missing: list[str], slower: list[str]) -> UniformAttention:
    backend.reason = "; ".join([f"{why}: {backend.reason}", *missing])
    backend.slower = "; ".join(slower) or None
    return backend


def _build(name: str, pool: KVPool, shape: AttentionShape, options: dict[str, object]) -> UniformAttention:
    module, kind = (OF_LATENTS if shape.latent else BACKENDS)[name]
    try:
        found = getattr(importlib.import_module(f".{module}", __package__), kind)
    except ImportError as error:
        raise BackendUnavailable(f"attention={name!r} cannot be imported ({error})") from error
    backend: UniformAttention = found(pool, shape, **options)
    return backend
