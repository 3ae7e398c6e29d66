"""What float8 costs: sgl-nano in bfloat16 against float8 weights, float8 keys and values, and both.

    python -m benchmarks.fp8_loss [--device cuda] [--keep]
    python -m benchmarks.fp8_loss --data ../shared/data [--count 20]      draws fp8_prompts.json anew

Held-back conversations go through the model with the right answers in place; every next-token distribution is
compared with that of bfloat16. On the CPU the arithmetic of float8 is done on restored numbers; on a GPU by the
kernels that serve it. --keep writes results/fp8_loss.txt, or fp8_loss_gpu.txt.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_results import keep_text
from sgl.runtime.attention import attention_backend
from sgl.runtime.calibration import CalibrationTransform, encoded
from sgl.runtime.engine import NANO
from sgl.runtime.loading import load_model
from sgl.runtime.nano.nano_prompts import render
from sgl.runtime.quantization import calibrated_for, kv_dtype_for, transform_for
from sgl.runtime.step.step_batch import StepBatch
from sgl.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from training.probes import Probe

PROMPTS = Path(__file__).parent / "fp8_prompts.json"
TASKS = ("snips-slots", "documents-names", "documents-domains")
SOURCE = "Utterances of SNIPS (CC0) that no training has seen, and documents made by training/synthetic.py."
LONGEST = 1500  # tokens of a conversation; longer ones are left out
HEAD = "                      KL mean   KL 99 %   same top   perplexity  (change)"


@dataclass(frozen=True)
class Kind:
    name: str
    dtype: torch.dtype = torch.bfloat16
    weights: str = "auto"
    kv: str = "auto"
    activations: str = "dynamic"


REFERENCE = Kind("bfloat16")
KINDS = (
    Kind("float32", dtype=torch.float32),
    Kind("weights fp8", weights="fp8"),
    Kind("weights fp8, one scale", weights="fp8_tensor"),
    Kind("KV fp8", kv="fp8"),
    Kind("both fp8", weights="fp8", kv="fp8"),
    Kind("weights fp8, blocks", weights="fp8_block"),
    Kind("fp8, static maximum", weights="fp8", activations="maximum"),
    Kind("fp8, static 99.99 %", weights="fp8", activations="percentile"),
)


@dataclass(frozen=True)
class Text:
    """A conversation: ids [T], and the first id of the answer."""

    ids: np.ndarray
    answer: int


class Model:
    """sgl-nano of one kind, run on a conversation at once."""

    def __init__(self, kind: Kind, device: torch.device) -> None:
        self.device = device
        self.decoder = load_model(NANO, kind.dtype, device, transform=_transform(kind, device))
        layout = self.decoder.config.attention
        stored = kv_dtype_for(kind.kv, kind.dtype, device, "torch_native")
        self.attention = attention_backend("torch_native", layout.pool(LONGEST + 1, stored, device), layout)

    @torch.inference_mode()
    def __call__(self, ids: np.ndarray) -> Tensor:
        """Log-probabilities after each token, float32 [T, vocabulary] on the CPU."""
        count = len(ids)
        at = torch.arange(count)
        tensors = (torch.from_numpy(ids.astype(np.int64)), at, at + 1)
        token_ids, positions, slots = (tensor.to(self.device) for tensor in tensors)
        rows = np.arange(1, count + 1, dtype=np.int32)
        batch = StepBatch(token_ids, positions, slots, [count], [count], [rows], positions)
        self.attention.plan(batch)
        return self.decoder.forward(batch, self.attention).float().log_softmax(-1).cpu()


def _transform(kind: Kind, device: torch.device) -> Any:
    found = calibrated_for(kind.weights, kind.activations, False, device)
    if found is None:
        return transform_for(kind.weights, False, device)
    return CalibrationTransform(
        found.quantise, lambda: encoded(Tokenizer.load(NANO), calibration(), LONGEST), seen=found.seen
    )


def calibration() -> list[str]:
    """Other such conversations, whole."""
    return [prompt + answer for prompt, answer in json.loads(PROMPTS.read_text())["calibration"]]


def texts() -> Iterator[Text]:
    """The kept conversations."""
    tokenizer = Tokenizer.load(NANO)
    for prompt, answer in json.loads(PROMPTS.read_text())["conversations"]:
        ids = tokenizer.encode(prompt + answer, special_prefix=True)
        if len(ids) <= LONGEST:
            yield Text(ids, len(tokenizer.encode(prompt, special_prefix=True)))


def draw(data: Path, count: int) -> None:
    """Keep other conversations, `count` of each task, and half as many to calibrate by: pairs
    of what comes before the answer, and the rest.
    """
    from training.probes import sample

    pairs = [_pair(probe) for task in TASKS for probe in sample(data, task, count)]
    others = [_pair(probe) for task in TASKS for probe in sample(data, task, count // 2, seed=1)]
    kept = {"source": SOURCE, "conversations": pairs, "calibration": [pair for pair in others if pair not in pairs]}
    PROMPTS.write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n")


def _pair(probe: Probe) -> tuple[str, str]:
    from training.probes import conversation

    whole, prompt = render(conversation(probe)), render(probe.prompt) + "<|assistant|>"
    if not whole.startswith(prompt):
        raise ValueError(
            f"the conversation does not begin with its prompt: {prompt[-40:]!r} and {whole[: len(prompt)][-40:]!r}"
        )
    return prompt, whole[len(prompt) :]


@dataclass(frozen=True)
class Loss:
    """Per token that is predicted: divergence from the reference in nats, equal first choices, -log p of the text."""

    divergence: Tensor
    same: Tensor
    surprise: Tensor
    answer: Tensor

    @staticmethod
    def of(text: Text, expected: Tensor, found: Tensor) -> Loss:
        following = torch.from_numpy(text.ids[1:].astype(np.int64))[:, None]
        expected, found = expected[:-1], found[:-1]
        return Loss(
            (expected.exp() * (expected - found)).sum(-1),
            (expected.argmax(-1) == found.argmax(-1)).float(),
            -found.gather(1, following)[:, 0],
            torch.arange(1, len(text.ids)) >= text.answer,
        )

    @staticmethod
    def joined(parts: list[Loss]) -> Loss:
        fields = ("divergence", "same", "surprise", "answer")
        return Loss(*(torch.cat([getattr(part, field) for part in parts]) for field in fields))

    def of_answers(self) -> Loss:
        chosen = self.answer
        return Loss(self.divergence[chosen], self.same[chosen], self.surprise[chosen], chosen[chosen])

    @property
    def perplexity(self) -> float:
        return float(self.surprise.mean().exp())


def line(name: str, loss: Loss, reference: Loss) -> str:
    change = loss.perplexity / reference.perplexity - 1
    return (
        f"{name:22}{loss.divergence.mean():8.5f}  {loss.divergence.quantile(0.99):8.5f}   {loss.same.mean():7.2%}   "
        f"{loss.perplexity:10.4f}  ({change:+.2%})"
    )


def measure(conversations: list[Text], device: torch.device, kinds: Iterable[Kind] = KINDS) -> dict[str, Loss]:
    model = Model(REFERENCE, device)
    expected = [model(text.ids) for text in conversations]
    pairs = zip(conversations, expected, strict=True)
    losses = {REFERENCE.name: Loss.joined([Loss.of(text, p, p) for text, p in pairs])}
    for kind in kinds:
        model = Model(kind, device)
        pairs = zip(conversations, expected, strict=True)
        losses[kind.name] = Loss.joined([Loss.of(text, p, model(text.ids)) for text, p in pairs])
    return losses


def report(losses: dict[str, Loss], title: str) -> str:
    reference = losses[REFERENCE.name]
    lines = [f"{title}: {len(reference.same):,} tokens", HEAD]
    return "\n".join([*lines, *(line(name, loss, reference) for name, loss in losses.items()), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="draw conversations from here before")
    parser.add_argument("--count", type=int, default=20, help="conversations of each task to draw")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    if asked.data:
        draw(asked.data, asked.count)
    device, started = torch.device(asked.device), time.perf_counter()
    conversations = list(texts())
    losses = measure(conversations, device)
    answers = {name: loss.of_answers() for name, loss in losses.items()}
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, restored numbers"
    text = f"sgl-nano, {len(conversations)} conversations, {where}\n\n"
    text += report(losses, "every token") + "\n" + report(answers, "the answers alone")
    print(f"{text}\n{time.perf_counter() - started:.0f} s")
    if asked.keep:
        keep_text("fp8_loss_gpu" if device.type == "cuda" else "fp8_loss", text)


if __name__ == "__main__":
    main()
