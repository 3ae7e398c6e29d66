"""Trains the adapter (LoRA, Hu et al. 2021, arXiv:2106.09685) that ships with sgl-nano, and writes it as PEFT does.

    python -m training.lora --data ../shared/data --out runtime/nano/adapters/listings --minutes 8

On a GPU if there is one. The base is not changed; the pairs of rank 8 are added to all projections of its layers.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from sgl.runtime.loading.tensor_files.save_safetensors import save_tensors
from sgl.runtime.nano.nano_prompts import START, render
from training.feed import Marker, Rows
from training.listings import SEED, conversations
from training.model import DenseAttention, Nano, Shape
from training.packing import pack
from training.tokenizer import token_id

NANO = Path("runtime/nano")
RANK, ALPHA = 8, 16
RATE = 2e-3
WARM = 0.05  # of the time the rate rises
ROW, BATCH = 512, 4
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Lora(nn.Module):
    """A linear layer that stays as it is, plus alpha / rank * B(A x), which is learnt. B begins at zero."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


def load_nano(folder: Path) -> Nano:
    """The trained model from its shards, in float32."""
    weights: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        weights |= load_file(shard)
    weights.pop("lm_head.weight", None)
    model = Nano(Shape())
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model


def add_pairs(model: Nano, rank: int = RANK, alpha: float = ALPHA) -> dict[str, Lora]:
    """Wrap every projection; only the pairs are learnt. Returns them by the module's name."""
    model.requires_grad_(False)
    found = {name: module for name, module in model.named_modules() if name.rpartition(".")[2] in PROJECTIONS}
    pairs = {}
    for name, module in found.items():
        assert isinstance(module, nn.Linear)
        parent, _, last = name.rpartition(".")
        pairs[name] = Lora(module, rank, alpha)
        setattr(model.get_submodule(parent), last, pairs[name])
    return pairs


def answers_loss(model: Nano, rows: Rows, device: torch.device) -> Tensor:
    """Mean cross entropy of the tokens that the assistant writes. The output matrix sees no other token."""
    ids = torch.from_numpy(rows.tokens).long().to(device)
    asked = torch.from_numpy(rows.answers).to(device)[:, 1:]
    hidden = _hidden(model, ids[:, :-1], torch.from_numpy(rows.documents).to(device)[:, :-1])
    logits = F.linear(hidden[asked], model.model.embed_tokens.weight)
    return F.cross_entropy(logits.float(), ids[:, 1:][asked])


def _hidden(model: Nano, ids: Tensor, documents: Tensor) -> Tensor:
    attention, length = DenseAttention(), ids.shape[1]
    mask, rope = attention.mask(documents), (model.cos[:length], model.sin[:length])
    x = model.model.embed_tokens(ids)
    for layer in model.model.layers:
        x = layer(x, rope, attention.attend, mask)
    return model.model.norm(x)


def batches(data: Path, tokenizer: Tokenizer, seed: int) -> Iterator[Rows]:
    """Rows of whole conversations; longer ones are left out."""
    mark, made = Marker(tokenizer), conversations(data, seed)
    start = token_id(tokenizer, START)
    while True:
        texts = [render(each) for each in islice(made, 4 * BATCH)]
        tokens = [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]
        rows = pack([each for each in tokens if len(each) < ROW], start, ROW)
        for first in range(0, len(rows) - BATCH + 1, BATCH):
            yield mark(rows[first : first + BATCH])


def rate_at(done: float) -> float:
    """Of the highest rate, when the share `done` of the time is over: up in a line, down along a cosine."""
    return min(1.0, done / WARM) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def train(
    model: Nano, pairs: dict[str, Lora], feed: Iterator[Rows], minutes: float, device: torch.device
) -> dict[str, Any]:
    """Learn for so long. Returns what was done."""
    learnt = [parameter for pair in pairs.values() for parameter in (pair.a, pair.b)]
    optimizer = torch.optim.AdamW(learnt, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    begun, steps, tokens, mean = time.monotonic(), 0, 0, 0.0
    while (done := (time.monotonic() - begun) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate_at(done)
        rows = next(feed)
        with torch.autocast(device.type, torch.bfloat16):
            loss = answers_loss(model, rows, device)
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps, tokens, mean = (
            steps + 1,
            tokens + rows.tokens.size,
            loss.item() if not steps else 0.95 * mean + 0.05 * loss.item(),
        )
        if steps % 25 == 0:
            print(f"step {steps}, {tokens} tokens, {60 * minutes * done:.0f} s: loss {mean:.4f}", flush=True)
    return {
        "steps": steps,
        "tokens": tokens,
        "minutes": minutes,
        "loss": round(mean, 4),
        "parameters": sum(each.numel() for each in learnt),
    }


def save(pairs: dict[str, Lora], out: Path, rank: int = RANK, alpha: float = ALPHA) -> None:
    """adapter_config.json and adapter_model.safetensors, in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, pair in pairs.items():
        for letter, tensor in (("A", pair.a), ("B", pair.b)):
            tensors[f"base_model.model.{name}.lora_{letter}.weight"] = (
                tensor.detach().to("cpu", torch.bfloat16).contiguous()
            )
    save_tensors(tensors, out / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "base_model_name_or_path": "sgl-nano",
        "bias": "none",
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": list(PROJECTIONS),
        "task_type": "CAUSAL_LM",
        "use_rslora": False,
    }
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an adapter of sgl-nano.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_nano(NANO)
    pairs = add_pairs(model)
    torch.nn.Module.to(model, device=device)
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    print(train(model, pairs, batches(args.data, tokenizer, args.seed), args.minutes, device), f"on {device}")
    save(pairs, args.out)


if __name__ == "__main__":
    main()
