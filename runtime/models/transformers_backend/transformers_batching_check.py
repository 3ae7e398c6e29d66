"""The test at load of a model that transformers computes: packed and cached, it must agree with each sequence alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ...attention import attention_backend
from ...attention.backend_protocols import AttentionBackend
from ...errors import ConfigError
from ...step.step_batch import StepBatch
from .transformers_attention import NAME
from .transformers_decoder import TransformersDecoder

LENGTHS = (11, 1, 23, 6)  # tokens of the sequences
CHUNKS = ((4, 0, 23, 1), (0, 1, 0, 5), (7, 0, 0, 0))  # of them in each step
BOUNDS = {
    torch.float32: 2e-4,
    torch.bfloat16: 0.06,
    torch.float16: 0.02,
}  # on the difference, as a part of the logits' norm


@contextmanager
def needs_remote_code(architecture: str) -> Iterator[None]:
    """If the model's own code raises for a few tokens, that is a ConfigError with its reason."""
    try:
        yield
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
        AssertionError,
    ) as failure:
        raise ConfigError(
            f"{architecture} does not compute a few tokens by transformers' own implementation over our cache "
            f"({type(failure).__name__}: {failure}); take a model of an architecture that `sgl models` lists"
        ) from failure


@torch.inference_mode()
def check_batching(decoder: TransformersDecoder) -> None:
    """Raises ConfigError if packed sequences get other logits than each alone by transformers' own attention."""
    sequences = _sequences(decoder)
    with needs_remote_code(decoder.config.architecture):
        expected, found = _alone(decoder, sequences), _packed(decoder, sequences)
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not error <= BOUNDS[decoder.dtype]:
            raise ConfigError(
                f"{decoder.config.architecture} computes sequences that share a step otherwise than each alone "
                "(sequence "
                f"{index} of {len(LENGTHS)}: logits differ by {error:.1e} of their norm); transformers cannot run it "
                "over our cache"
            )


def _sequences(decoder: TransformersDecoder) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(decoder.config.vocab_size, (length,), generator=generator).to(decoder.device)
        for length in LENGTHS
    ]


def _alone(decoder: TransformersDecoder, sequences: list[Tensor]) -> list[Tensor]:
    module = decoder.module
    module.set_attn_implementation("eager")
    try:
        return [module(input_ids=ids[None], use_cache=False).logits[0, -1] for ids in sequences]
    finally:
        module.set_attn_implementation(NAME)


def _packed(decoder: TransformersDecoder, sequences: list[Tensor]) -> list[Tensor]:
    layout = decoder.config.attention
    pool = layout.pool(sum(LENGTHS) + 1, decoder.dtype, decoder.device)
    attention = attention_backend("torch_native", pool, layout)
    slots = np.random.default_rng(0).permutation(np.arange(1, sum(LENGTHS) + 1)).astype(np.int32)
    rows = np.split(slots, list(accumulate(LENGTHS))[:-1])
    done, last = [0] * len(LENGTHS), [torch.zeros(0)] * len(LENGTHS)
    for counts in CHUNKS:
        members = sorted((i for i, count in enumerate(counts) if count), key=lambda i: counts[i] > 1)
        logits = _step(decoder, attention, [(sequences[i], rows[i], done[i], counts[i]) for i in members])
        for index, row in zip(members, logits, strict=True):
            done[index] += counts[index]
            last[index] = row
    return last


def _step(
    decoder: TransformersDecoder, attention: AttentionBackend, work: list[tuple[Tensor, np.ndarray, int, int]]
) -> Tensor:
    """Logits of each one's last token."""
    device, counts = decoder.device, [count for *_, count in work]
    batch = StepBatch(
        token_ids=torch.cat([ids[done : done + count] for ids, _, done, count in work]),
        positions=torch.cat([torch.arange(done, done + count) for *_, done, count in work]).to(device),
        slots=torch.from_numpy(
            np.concatenate([slots[done : done + count] for _, slots, done, count in work]).astype(np.int64)
        ).to(device),
        query_lens=counts,
        context_lens=[done + count for *_, done, count in work],
        context_slots=[slots[: done + count] for _, slots, done, count in work],
        logit_rows=torch.tensor(list(accumulate(counts)), device=device) - 1,
    )
    attention.plan(batch)
    return decoder.forward(batch, attention)
