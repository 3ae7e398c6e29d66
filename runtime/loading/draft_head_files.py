"""Heads as they are published: which kind a directory holds, and its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError
from ..models.decoder import Decoder
from ..models.draft_head import DraftHead, DraftHeadNames, DraftHeadSpec
from ..models.spec.json_fields import JsonFields, shown
from ..models.spec.latent_attention_spec import LatentAttentionSpec
from ..models.spec.model_config import ModelConfig
from ..models.spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from ..models.spec.tensor_names import TensorNames
from ..quantization.readers import WeightReaders
from .checkpoint import is_state, metadata_of_sources, open_checkpoint, sources_of
from .load_plan import BUFFERS, LoadPlan, renamed
from .load_weights import RandomWeights, weights_of
from .model_files.model_directory import quantization_of, read_json
from .raw_weight import RawTensor, RawWeight
from .tensor_files.safetensors_header import FLOATS
from .tensor_files.tensor_source import WeightSource

EAGLE3, EAGLE = "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle"
SAID_ELSEWHERE = (
    "eagle_config",
    "draft_vocab_size",
    "norm_before_residual",
    "target_hidden_size",
    "bias",
    "eagle_aux_hidden_state_layer_ids",
    "tie_word_embeddings",
    "fc_bias",
    "use_aux_hidden_state",
    "parallel_drafting",
)
OWN = {"eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"}
AS_PUBLISHED = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
}  # as modelopt says what is so anyway
PUBLISHED = "EAGLE and EAGLE-3 heads of one layer as their authors publish them"


def kind_of(path: Path, load_format: str, weights: bool = True) -> str | None:
    """EAGLE3, EAGLE, or None: the directory holds a whole model. Says so by config.json; the authors' EAGLE heads only
    by their tensors.

    weights: they are wanted. Raises CheckpointError where nothing tells because they are absent or not to be read so.
    """
    if not (file := path / "config.json").exists():
        return None
    values = read_json(file)
    names = [name for name in values.get("architectures") or [] if isinstance(name, str)]
    if "draft_vocab_size" in values or any("Eagle3" in name for name in names):
        return EAGLE3
    if any("Eagle" in name for name in names):
        return EAGLE
    try:
        tensors = {plain_name(stored.name) for source in sources_of(path, load_format) for stored in source.tensors}
    except CheckpointError:
        if weights:
            raise
        return None
    return EAGLE if "fc.weight" in tensors else None


def plain_name(name: str) -> str:
    """What a tensor of a head is called here: without the wrapper, and the layer by its number."""
    return re.sub(r"^midlayer\.", "layers.0.", name.removeprefix("model."))


class DraftHeadFiles:
    """A head on this machine. sources: empty, where the weights are to be random.  readers: of weights in few bits,
    which are restored.  where: for errors.

    scores: the target's matrix of logits, where the head is to have its own copy.
    """

    def __init__(
        self,
        spec: DraftHeadSpec,
        sources: list[WeightSource],
        names: Callable[[str], str | None],
        readers: WeightReaders,
        where: str,
        scores: list[RawTensor] | None = None,
    ) -> None:
        self.spec, self.where, self._sources, self._names, self._readers, self._scores = (
            spec,
            where,
            sources,
            names,
            readers,
            scores or [],
        )

    def scoring(self, target: ModelSpec, path: Path, load_format: str) -> DraftHeadFiles:
        """The same that scores by itself, for a target of whose matrix of logits only some rows are here.

        Raises ConfigError where its files have it in few bits, or logits are more than that.
        """
        if self.spec.scores:
            return self
        pieces = head_scores_of(target, path, load_format) if self._sources else []
        return DraftHeadFiles(
            replace(self.spec, scores=True), self._sources, self._names, self._readers, self.where, pieces
        )

    def load(self, target: Decoder, dtype: torch.dtype, device: torch.device, seed: int | None) -> DraftHead:
        """Raises CheckpointError for tensors that are missing, have no place, or other shapes or numbers than
        floats."""
        head = DraftHead(self.spec, target, dtype, device)
        if seed is not None:
            RandomWeights(seed, dtype, device).fetch(0, head)
        else:
            with weights_of(self._plan(head), device, "draft head") as weights:
                weights.fetch(0, head).wait()
        return head.seal()

    def _plan(self, head: DraftHead) -> LoadPlan:
        """What goes where; the ids of its tokens are read at once."""
        targets = {place.name: place.target for place in head.places()}
        found: dict[str, dict[str, RawTensor]] = {}  # of each target, "weight" and its companions
        for piece, name in self._tensors():
            place, _, suffix = name.rpartition(".")
            if name == "d2t" and head.ids is not None:
                self._require(piece, head.ids, ("I32", "I64"))
                head.ids.copy_(piece.read() + torch.arange(len(head.ids)))
            elif f"{place}.weight" in targets and (suffix == "weight" or name not in targets):
                found.setdefault(f"{place}.weight", {})[suffix] = piece
            elif name in targets:
                found[name] = {"weight": piece}
            else:
                raise self._homeless(piece)
        plan = LoadPlan({name: self._weight(pieces, targets[name]) for name, pieces in found.items()})
        if self._scores:
            pieces = {str(number): piece for number, piece in enumerate(self._scores)}
            plan.weights[f"{self.spec.names.head}.weight"] = RawWeight(pieces)
        if missing := sorted({*targets} - {*plan.weights}):
            raise CheckpointError(f"{self.where}: the {self.spec.kind} head lacks {', '.join(missing[:4])}")
        if head.ids is not None and not (
            int(head.ids.min()) >= 0 and int(head.ids.max()) < head.target.config.vocab_size
        ):
            raise CheckpointError(
                f"{self.where}: d2t leads to tokens outside the target's vocabulary of {head.target.config.vocab_size}"
            )
        return plan

    def _weight(self, pieces: dict[str, RawTensor], target: Tensor) -> RawWeight:
        """As its floats are, or to be restored."""
        first = pieces.get("weight") or next(iter(pieces.values()))
        if set(pieces) != {"weight"} or first.stored.dtype not in FLOATS:
            siblings = {suffix: piece.header for suffix, piece in pieces.items()}
            reader = self._readers.claim(first.stored.name.rpartition(".")[0], siblings)
            if reader is not None and reader.shape in ((1, target.numel()), tuple(target.shape)):
                return RawWeight({suffix: pieces[suffix] for suffix in reader.names}, reader)
        if strange := next((piece for suffix, piece in pieces.items() if suffix != "weight"), None):
            raise self._homeless(strange)
        self._require(first, target, tuple(FLOATS))
        return RawWeight({"weight": first})

    def _homeless(self, piece: RawTensor) -> CheckpointError:
        return CheckpointError(
            f"{piece.source.name}: tensor {shown(piece.stored.name)} has no place in an {self.spec.kind} head"
        )

    def _tensors(self) -> Iterator[tuple[RawTensor, str]]:
        for source in self._sources:
            for stored in source.tensors:
                name = self._names(stored.name)
                if name is not None and not any(re.fullmatch(pattern, name) for pattern in (*BUFFERS, "t2d")):
                    yield RawTensor(source, stored), name

    def _require(self, piece: RawTensor, target: Tensor, kinds: tuple[str, ...]) -> None:
        if list(target.shape) != piece.stored.shape or piece.stored.dtype not in kinds:
            raise CheckpointError(
                f"{piece.source.name}: tensor {shown(piece.stored.name)} holds {piece.stored.dtype} "
                f"{piece.stored.shape}; the {self.spec.kind} head asks for {list(target.shape)} in {', '.join(kinds)}"
            )


def open_draft_head(path: Path, kind: str, target: ModelSpec, load_format: str, weights: bool) -> DraftHeadFiles:
    """An EAGLE or EAGLE-3 head for a target.

    Raises ConfigError for one that does not fit it, or that is not understood.
    """
    where, values = str(path / "config.json"), read_json(path / "config.json")
    sources = sources_of(path, load_format) if weights else []
    tensors = {plain_name(stored.name) for source in sources for stored in source.tensors}
    fields = JsonFields(values, where)
    config = ModelConfig({key: value for key, value in values.items() if key not in SAID_ELSEWHERE}, where, kind)
    three = kind == EAGLE3
    if fields.flag("parallel_drafting"):
        raise ConfigError(f"{where}: parallel_drafting=True guesses several tokens in one step; sgl has {PUBLISHED}")
    _require_understood(fields, values.get("eagle_config"), tensors if weights else None, three)
    if config.count != 1:
        raise ConfigError(f"{where}: a head of {config.count} layers; sgl has {PUBLISHED}")
    model = _one_layer(config, fields, target, three)
    spec = DraftHeadSpec(
        kind="EAGLE-3" if three else "EAGLE",
        model=model,
        target_hidden=fields.positive("target_hidden_size", target.hidden_size),
        layers=_aux_layers(fields, values, len(target.layers)) if three else (),
        names=DraftHeadNames(),
        fc_bias="fc.bias" in tensors,
        embeds="embed_tokens.weight" in tensors,
        scores="lm_head.weight" in tensors or (three and not weights),
        maps="d2t" in tensors or (not weights and model.vocab_size != target.vocab_size),
        normed_residual=fields.flag("norm_before_residual"),
    )
    config.finish()
    _require_fit(spec, target, where)
    return DraftHeadFiles(
        spec,
        sources,
        plain_name,
        WeightReaders.of(*quantization_of(path)).with_metadata(metadata_of_sources(sources)),
        str(path),
    )


def _require_understood(fields: JsonFields, own: Any, tensors: set[str] | None, three: bool) -> None:
    """Refuses options that change what a head computes.

    own: its "eagle_config".  tensors: their names; None: they are random.
    """
    if own is not None and not (
        isinstance(own, dict) and {name for name, value in own.items() if AS_PUBLISHED.get(name) != value} <= OWN
    ):
        raise ConfigError(
            f"{fields.where}: eagle_config is {shown(own)}; it may be an object with {' and '.join(sorted(OWN))}"
        )
    if fields.raw("use_aux_hidden_state") is False or (own or {}).get("use_aux_hidden_state") is False:
        raise ConfigError(
            f"{fields.where}: use_aux_hidden_state is false, so the head reads other states; sgl has {PUBLISHED}"
        )
    if tensors is None:
        return
    if (asked := fields.raw("fc_bias")) is not None and asked is not ("fc.bias" in tensors):
        raise ConfigError(
            f"{fields.where}: fc_bias is {shown(asked)}, and the head has {'a' if 'fc.bias' in tensors else 'no'} "
            "tensor fc.bias"
        )
    if (
        three
        and fields.raw("tie_word_embeddings") is True
        and "embed_tokens.weight" in tensors
        and "lm_head.weight" not in tensors
    ):
        raise ConfigError(
            f"{fields.where}: tie_word_embeddings is true, so the head scores by its own embed_tokens; sgl has "
            f"{PUBLISHED}"
        )


def _one_layer(c: ModelConfig, fields: JsonFields, target: ModelSpec, three: bool) -> ModelSpec:
    bias, rms = c.flag("attention_bias"), c.rms()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width()))
    norms = LayerNorms.pre(rms) if three else LayerNorms(before_ffn=rms)
    model = c.model(
        [c.layer(norms, mixer, GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias")))],
        rms,
        names=TensorNames(layer="layers.{}."),
    )
    return replace(
        model,
        vocab_size=fields.positive("draft_vocab_size", target.vocab_size) if three else target.vocab_size,
        tied=False,
    )


def _aux_layers(fields: JsonFields, values: dict[str, Any], count: int) -> tuple[int, ...]:
    """Before which of the target's layers its states are kept.

    What config.json lists are the layers whose outputs these are.
    """
    own = values.get("eagle_config")
    listed = fields.raw("eagle_aux_hidden_state_layer_ids") or (
        own.get("eagle_aux_hidden_state_layer_ids") if isinstance(own, dict) else None
    )
    if listed is not None and not (isinstance(listed, list) and all(type(layer) is int for layer in listed)):
        raise ConfigError(
            f"{fields.where}: eagle_aux_hidden_state_layer_ids is {shown(listed)}; it must be a list of whole numbers"
        )
    found = (2, count // 2, count - 3) if listed is None else tuple(layer + 1 for layer in listed)
    if len(found) != 3 or sorted(set(found)) != list(found) or not found[0] > 0 or found[2] >= count:
        raise ConfigError(
            f"{fields.where}: an EAGLE-3 head reads the states before three layers in rising order, here {list(found)} "
            f"of a target with {count}"
        )
    return found


def _require_fit(spec: DraftHeadSpec, target: ModelSpec, where: str) -> None:
    if spec.target_hidden != target.hidden_size:
        raise ConfigError(
            f"{where}: the head reads states of {spec.target_hidden} numbers, {target.architecture} has "
            f"{target.hidden_size}; take the head of this target"
        )
    if spec.kind == "EAGLE" and spec.model.hidden_size != target.hidden_size:
        raise ConfigError(
            f"{where}: hidden_size={spec.model.hidden_size}, {target.architecture} has {target.hidden_size}; take "
            "the head of this target"
        )
    if not spec.embeds and spec.model.hidden_size != target.hidden_size:
        raise ConfigError(
            f"{where}: the head has no own embedding, and hidden_size={spec.model.hidden_size} is not the "
            f"target's {target.hidden_size}"
        )
    if spec.model.vocab_size != target.vocab_size and not (spec.maps and spec.scores):
        raise ConfigError(
            f"{where}: draft_vocab_size={spec.model.vocab_size} of {target.vocab_size} tokens needs the tensors d2t "
            "and lm_head.weight"
        )


def open_mtp_head(path: Path, target: ModelSpec, load_format: str) -> DraftHeadFiles:
    """The layer after the last one in a target's own checkpoint.

    Raises ConfigError where there is none, or none of this kind.
    """
    begin = f"model.layers.{len(target.layers)}."
    sources = sources_of(path, load_format)
    tensors = {stored.name for source in sources for stored in source.tensors}
    if f"{begin}eh_proj.weight" not in tensors:
        raise ConfigError(
            f"Engine(draft='mtp'): {path} has no {begin}eh_proj.weight, as DeepSeek-V3's and GLM-4.5's layers for "
            "drafts have; leave it out"
        )
    mixer = target.layers[-1].mixer
    if isinstance(mixer, LatentAttentionSpec) and mixer.indexer is not None:
        raise ConfigError(
            f"Engine(draft='mtp'): {target.architecture} chooses the tokens that it attends to, which its layer for "
            "drafts does not here"
        )
    spec = DraftHeadSpec(
        kind="MTP",
        model=replace(target, layers=target.layers[-1:], names=replace(target.names, layer=begin), notes=()),
        target_hidden=target.hidden_size,
        layers=(),
        names=DraftHeadNames(
            f"{begin}eh_proj",
            f"{begin}enorm",
            f"{begin}hnorm",
            f"{begin}shared_head.norm",
            f"{begin}shared_head.head",
            f"{begin}embed_tokens",
        ),
        embeds=f"{begin}embed_tokens.weight" in tensors,
        scores=f"{begin}shared_head.head.weight" in tensors,
    )
    return DraftHeadFiles(
        spec,
        sources,
        lambda name: name if name.startswith(begin) else None,
        WeightReaders.of(*quantization_of(path)).with_metadata(metadata_of_sources(sources)),
        str(path),
    )


def head_scores_of(target: ModelSpec, path: Path, load_format: str) -> list[RawTensor]:
    """Where a target's matrix of logits is stored, row by row.

    Raises ConfigError where rows are missing, or where logits need more than this matrix.
    """
    if target.head_bias or target.head_unit or target.embed_size:
        raise ConfigError(
            f"the logits of {target.architecture} are more than a product with its lm_head, which a head over "
            "several ranks does not make; take a draft model"
        )
    name = f"{target.names.embedding if target.tied else target.names.head}.weight"
    sources = (
        sources_of(path, load_format)
        if is_state(path, load_format)
        else open_checkpoint(path, load_format=load_format).sources
    )
    found = [
        RawTensor(source, stored)
        for source in sources
        for stored in source.tensors
        if renamed(stored.name, target, ()) == name
    ]
    found = (
        found[:1] if target.tied else found
    )  # of a sharded state each rank has the whole table, and its own rows of a head
    rows = sum(
        stored.shape[0] for _, stored in found if stored.shape[1:] == [target.hidden_size] and stored.dtype in FLOATS
    )
    if rows != target.vocab_size:
        raise ConfigError(
            f"{path}: {name} is not there as floats of {[target.vocab_size, target.hidden_size]}, of which a head "
            "over several ranks takes a copy; take a draft model"
        )
    return found
