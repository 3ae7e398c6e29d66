"""Streams a checkpoint into a decoder: each tensor straight to its place, merged and converted on the way."""

from __future__ import annotations

import difflib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..models.decoder import Decoder
from ..models.fields import shown
from ..models.spec import Model
from .files import load_config, weight_files
from .header import FLOATS, Stored, damaged, read_header
from .transfer import Chunk, chunks, transfer

COMPARED = 2**24  # bytes of two tensors that are compared at a time
SHOWN = 2 * 10**9  # bytes from which a terminal sees a progress bar

Transform = Callable[..., Any]


def load_model(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    dummy_seed: int | None = None,
    transform: Transform | None = None,
    context: int | None = None,
) -> Decoder:
    """The decoder of a model directory, its weights converted to `dtype` on `device`.

    Reads local files only. With `dummy_seed` nothing but the configuration is read and the weights are random.
    `transform` is given to `Decoder.seal`, which applies it to each matrix. context: see `read_model`. Raises
    CheckpointError for files and tensors that are absent, unexpected, damaged or wrongly shaped, before memory is
    taken for them, and ConfigError for a configuration that is not supported.
    """
    config = load_config(path, context)
    if dummy_seed is not None:
        return dummy_model(config, dtype, device, dummy_seed, transform)
    config = with_own_head(config, Path(path))
    found = pieces_of(config, Path(path))
    model = Decoder(config, dtype, device)
    fill(model, found)
    return _sealed(model, transform)


@torch.no_grad()
def dummy_model(
    config: Model,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    transform: Transform | None = None,
) -> Decoder:
    """A decoder with random weights, the same for the same seed and kind of device; norms are one, biases small."""
    model = Decoder(config, dtype, device)
    generator = torch.Generator(model.device).manual_seed(seed)
    for name, target in model.places():
        if target.dim() == 1 and name.endswith(("weight", "scalar")):
            target.fill_(1.0)
        elif target.is_cuda:
            target.normal_(0.0, 0.02, generator=generator)
        else:  # drawn in float32: the same values for every dtype
            target.copy_(torch.empty(target.shape).normal_(0.0, 0.02, generator=generator))
    return _sealed(model, transform)


def _sealed(model: Decoder, transform: Transform | None) -> Decoder:
    return model.seal() if transform is None else model.seal(transform)


class Piece(NamedTuple):
    """A tensor of a file. place: what it is called in the model."""

    file: Path
    stored: Stored
    place: str

    def reader(self, offset: int) -> Callable[[Tensor], None]:
        return lambda part: self._read(offset, part)

    def bytes_at(self, offset: int, count: int) -> bytes:
        with open(self.file, "rb") as stream:
            stream.seek(self.stored.start + offset)
            return stream.read(count)

    def _read(self, offset: int, part: Tensor) -> None:
        view = part.numpy().data
        with open(self.file, "rb", buffering=0) as stream:
            stream.seek(self.stored.start + offset)
            while len(view):
                count = stream.readinto(view)
                if not count:
                    raise damaged(self.file, f"it ended within tensor {shown(self.stored.name)}")
                view = view[count:]


def fill(model: Decoder, pieces: list[Piece]) -> None:
    """Copy every piece to its place in an unsealed model."""
    with torch.no_grad(), _progress(sum(p.stored.stop - p.stored.start for p in pieces)) as done:
        transfer(_chunks(dict(model.places()), pieces), model.device, done)


def _chunks(places: dict[str, Tensor], pieces: list[Piece]) -> Iterator[Chunk]:
    for piece in pieces:
        yield from chunks(piece.reader, FLOATS[piece.stored.dtype], places[piece.place])


def pieces_of(config: Model, path: Path) -> list[Piece]:
    """The tensors of the checkpoint in `path` that the model needs: all of them, each of the right shape.

    Headers alone are read, and no memory is taken for weights. Raises CheckpointError for a tensor that is missing,
    has another shape or has no place and is none of those that may be left aside.
    """
    files = [(file, read_header(file)) for file in weight_files(path)]
    _check_layers(config, path, files)
    places = dict(Decoder(config, torch.float32, "meta").places())
    found: dict[str, Piece] = {}
    for file, tensors in files:
        for stored in tensors:
            name = _renamed(stored.name, config, places)
            if name in found:
                raise CheckpointError(f"{file}: tensor {shown(stored.name)} is there twice, also as {shown(found[name].stored.name)} in {found[name].file.name}")
            if name in places:
                found[name] = _checked(Piece(file, stored, name), places[name])
            elif not is_ignored(stored.name, config):
                raise CheckpointError(_unexpected(stored.name, file, places))
            elif config.tied and name == f"{config.names.head}.weight":
                _checked(Piece(file, stored, name), places[f"{config.names.embedding}.weight"])
    _require_all(path, places, found)
    return list(found.values())


def with_own_head(config: Model, path: Path) -> Model:
    """The model untied if its files hold a head that is not the embedding, whatever config.json says, as transformers does.

    Fine-tuned wrappers often say that they are tied and are not.
    """
    if not config.tied:
        return config
    both = {f"{name}.weight": torch.empty(0) for name in (config.names.head, config.names.embedding)}
    named = {_renamed(stored.name, config, both): Piece(file, stored, "") for file in weight_files(path) for stored in read_header(file)}
    head, table = (named.get(name) for name in both)
    if head is None or table is None or _same(head, table):
        return config
    note = "config.json ties the head to the embedding, but the files hold another head: that one is used"
    return replace(config, tied=False, notes=(*config.notes, note))


def _same(one: Piece, other: Piece) -> bool:
    """Whether two tensors of files hold the same bytes."""
    size = one.stored.stop - one.stored.start
    if (one.stored.dtype, one.stored.shape) != (other.stored.dtype, other.stored.shape):
        return False
    pieces = [(start, min(COMPARED, size - start)) for start in range(0, size, COMPARED)]
    return all(one.bytes_at(start, count) == other.bytes_at(start, count) for start, count in pieces)


def _renamed(name: str, config: Model, places: dict[str, Tensor]) -> str:
    """What a tensor is called in the model."""
    for begin, instead in config.names.prefixes:
        if name not in places and name.startswith(begin):
            return instead + name.removeprefix(begin)
    return name


def _check_layers(config: Model, path: Path, files: list[tuple[Path, list[Stored]]]) -> None:
    """A model of more layers than the files have tensors is none of theirs."""
    tensors = sum(len(stored) for _, stored in files)
    if len(config.layers) > tensors:
        raise CheckpointError(
            f"{path / 'config.json'}: num_hidden_layers gives {len(config.layers)} layers, the files hold {tensors} tensors; "
            "they do not belong together"
        )


def _require_all(path: Path, places: dict[str, Tensor], found: dict[str, Piece]) -> None:
    waiting = sorted(set(places) - set(found))
    if waiting:
        some = ", ".join(waiting[:5])
        raise CheckpointError(
            f"{path} lacks {len(waiting)} of {len(places)} tensors: {some}"
            f"{' ...' if len(waiting) > 5 else ''}; the weights do not belong to config.json or are incomplete"
        )


def _checked(piece: Piece, place: Tensor) -> Piece:
    file, stored, _ = piece
    if stored.shape != list(place.shape):
        raise CheckpointError(
            f"{file}: tensor {shown(stored.name)} has shape {shown(stored.shape)}, config.json asks for {list(place.shape)}"
        )
    if stored.dtype not in FLOATS:
        raise CheckpointError(
            f"{file}: tensor {shown(stored.name)} holds {shown(stored.dtype)[1:-1]}, supported are {', '.join(FLOATS)}; "
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


BUFFERS = (r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)", r".*\.attn\.(masked_)?bias", r".*\.position_ids")  # saved, but no weights


def is_ignored(name: str, config: Model) -> bool:
    """Whether a checkpoint may hold the tensor without a place here: a tied head's copy, saved tables, a wrapper's towers."""
    copies = [re.escape(f"{config.names.head}.weight")] if config.tied else []
    return any(re.fullmatch(pattern, name) for pattern in (*BUFFERS, *config.names.ignored, *copies))


def _unexpected(name: str, file: Path, places: dict[str, Tensor]) -> str:
    near = difflib.get_close_matches(name, places, 1)
    hint = f"; nearest expected name: {near[0]!r}" if near else ""
    return f"{file}: tensor {shown(name)} has no place in the model that config.json describes{hint}"
