"""Streams a checkpoint into a decoder: each tensor straight to its place, merged and converted on the way."""

from __future__ import annotations

import difflib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from .files import load_config, weight_files
from .header import FLOATS, Stored, damaged, read_header
from .transfer import Chunk, chunks, transfer

SHOWN = 2 * 10**9  # bytes from which a terminal sees a progress bar

Transform = Callable[..., Any]


def load_model(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    dummy_seed: int | None = None,
    transform: Transform | None = None,
) -> Decoder:
    """The decoder of a model directory, its weights converted to `dtype` on `device`.

    Reads local files only. With `dummy_seed` nothing but the configuration is read and the weights are random.
    `transform` is given to `Decoder.seal`, which applies it to each matrix. Raises CheckpointError for files and
    tensors that are absent, unexpected, damaged or wrongly shaped, and ConfigError for a configuration that is
    not supported.
    """
    config = load_config(path)
    if dummy_seed is not None:
        return dummy_model(config, dtype, device, dummy_seed, transform)
    model = Decoder(config, dtype, device)
    fill(model, Path(path))
    return _sealed(model, transform)


@torch.no_grad()
def dummy_model(
    config: ModelConfig,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    transform: Transform | None = None,
) -> Decoder:
    """A decoder with random weights, the same for the same seed and kind of device; norms are one, biases small."""
    model = Decoder(config, dtype, device)
    generator = torch.Generator(model.device).manual_seed(seed)
    for name, target in model.parameters().items():
        if name.endswith("norm.weight"):
            target.fill_(1.0)
        elif target.is_cuda:
            target.normal_(0.0, 0.02, generator=generator)
        else:  # drawn in float32: the same values for every dtype
            target.copy_(torch.empty(target.shape).normal_(0.0, 0.02, generator=generator))
    return _sealed(model, transform)


def _sealed(model: Decoder, transform: Transform | None) -> Decoder:
    return model.seal() if transform is None else model.seal(transform)


class Piece(NamedTuple):
    """A tensor of a file and its place in the model."""

    file: Path
    stored: Stored
    place: Tensor

    def reader(self, offset: int) -> Callable[[Tensor], None]:
        return lambda part: self._read(offset, part)

    def _read(self, offset: int, part: Tensor) -> None:
        view = part.numpy().data
        with open(self.file, "rb", buffering=0) as stream:
            stream.seek(self.stored.start + offset)
            while len(view):
                count = stream.readinto(view)
                if not count:
                    raise damaged(self.file, f"it ended within tensor {self.stored.name!r}")
                view = view[count:]


def fill(model: Decoder, path: Path) -> None:
    """Copy every tensor of the checkpoint in `path` to its place in an unsealed model.

    Everything that the headers tell is checked before the first tensor is read.
    """
    pieces = _pieces(model, path)
    with torch.no_grad(), _progress(sum(p.stored.stop - p.stored.start for p in pieces)) as done:
        transfer(_chunks(pieces), model.device, done)


def _chunks(pieces: list[Piece]) -> Iterator[Chunk]:
    for piece in pieces:
        yield from chunks(piece.reader, FLOATS[piece.stored.dtype], piece.place)


def _pieces(model: Decoder, path: Path) -> list[Piece]:
    places = model.parameters()
    ignored = _ignored(model.config)
    found: list[Piece] = []
    for file in weight_files(path):
        for stored in read_header(file):
            if stored.name in places:
                found.append(_checked(Piece(file, stored, places[stored.name])))
            elif not ignored(stored.name):
                raise CheckpointError(_unexpected(stored.name, file, places))
    waiting = set(places) - {piece.stored.name for piece in found}
    if waiting:
        some = ", ".join(sorted(waiting)[:5])
        raise CheckpointError(
            f"{path} lacks {len(waiting)} of {len(places)} tensors: {some}"
            f"{' ...' if len(waiting) > 5 else ''}; the weights do not belong to config.json or are incomplete"
        )
    return found


def _checked(piece: Piece) -> Piece:
    file, stored, place = piece
    if stored.shape != list(place.shape):
        raise CheckpointError(
            f"{file}: tensor {stored.name!r} has shape {stored.shape}, config.json asks for {list(place.shape)}"
        )
    if stored.dtype not in FLOATS:
        raise CheckpointError(
            f"{file}: tensor {stored.name!r} holds {stored.dtype}, supported are {', '.join(FLOATS)}; "
            "use the checkpoint before its quantisation"
        )
    return piece


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """Counts bytes on a bar, if there is a terminal to see it and something to wait for."""
    if total < SHOWN or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    lock = threading.Lock()
    with tqdm(total=total, unit="B", unit_scale=True, desc="weights") as bar:

        def done(count: int) -> None:
            with lock:
                bar.update(count)

        yield done


def _ignored(config: ModelConfig) -> Callable[[str], bool]:
    """Tensors that a checkpoint may hold without a place here: a tied head's copy, saved rotary tables."""
    tied_head = f"{config.architecture.names.head}.weight" if config.tied_embeddings else None
    return lambda name: name == tied_head or name.endswith("rotary_emb.inv_freq")


def _unexpected(name: str, file: Path, places: dict[str, Tensor]) -> str:
    near = difflib.get_close_matches(name, places, 1)
    hint = f"; nearest expected name: {near[0]!r}" if near else ""
    return f"{file}: tensor {name!r} has no place in the model that config.json describes{hint}"
