"""What an adapter_config.json of PEFT says, as far as it changes results; all else that would is refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...common.argument_checks import shown
from ...errors import CheckpointError
from .module_patterns import ModulePatterns

TRAINING = {  # of the training, or about the files: results are the same whatever they say
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "base_model_class",
    "parent_library",
    "revision",
    "inference_mode",
    "target_modules",
    "exclude_modules",
    "lora_dropout",
    "layers_to_transform",
    "layers_pattern",
    "megatron_core",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "qalora_group_size",
    "runtime_config",
    "ensure_weight_tying",  # only of modules that it has anyway, see adapter_extras_reader.py
    "fan_in_fan_out",  # how the base stores its weight; the pairs of an adapter are stored the same way
}
READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"}
EXTRAS = {  # what comes besides the pairs, read where the reference computes
    "use_dora": "DoRA scales the rows of the dense weight",
    "lora_bias": "the pairs have biases",
    "bias": "the base's biases were trained",
    "modules_to_save": "it brings whole modules in place of the base's",
    "trainable_token_indices": "it brings rows of the embedding",
    "target_parameters": "it changes parameters, such as those of experts, that are no modules",
}
REFUSED = {
    "layer_replication": "the model has some of its layers more than once",
    "use_qalora": "inputs are pooled before the first matrix",
    "use_bdlora": "its matrices are block diagonal",
    "alora_invocation_tokens": "it acts only after an invocation",
    "megatron_config": "it is cut for Megatron",
    "arrow_config": "several adapters are mixed by a router",
    "velora_config": "it is another method than LoRA",
    "monteclora_config": "it is another method than LoRA",
    "kasa_config": "it is another method than LoRA",
}
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # ways to begin that leave other weights in the base
MOST_RANK = 1024


@dataclass(frozen=True)
class PeftConfig:
    """rank, alpha: of modules that no pattern names. where: for errors.  extras: values of `EXTRAS` that are set."""

    rank: int
    alpha: float
    rslora: bool
    ranks: dict[str, int]
    alphas: dict[str, float]
    where: str
    extras: dict[str, Any]
    _ranks_of: ModulePatterns = field(init=False, repr=False, compare=False)
    _alphas_of: ModulePatterns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ranks_of", ModulePatterns(self.ranks, f"{self.where}: rank_pattern"))
        object.__setattr__(self, "_alphas_of", ModulePatterns(self.alphas, f"{self.where}: alpha_pattern"))

    @classmethod
    def of(cls, values: dict[str, Any], where: str, reads_extras: bool = False) -> PeftConfig:
        """reads_extras: more than pairs is read. Raises CheckpointError naming the key that cannot be used."""
        _refuse(values, where)
        asked = {key: values[key] for key in EXTRAS if values.get(key) and values[key] != "none"}
        for key, value in asked.items():
            if not reads_extras:
                raise CheckpointError(
                    f"{where}: {key}={shown(value)} is not supported here: {EXTRAS[key]}, which is not read for a "
                    "GGUF file, and with deterministic=True on a CPU for models of attention and dense feedforward "
                    "networks alone; merge the adapter into its base"
                )
        ranks = {
            name: _rank(rank, f"{where}: rank_pattern {shown(name)}")
            for name, rank in _pattern(values, "rank_pattern", where).items()
        }
        alphas = {
            name: _number(alpha, f"{where}: alpha_pattern {shown(name)}")
            for name, alpha in _pattern(values, "alpha_pattern", where).items()
        }
        rank, alpha = (
            _rank(values.get("r", 8), f"{where}: r"),
            _number(values.get("lora_alpha", 8), f"{where}: lora_alpha"),
        )
        return cls(rank, alpha, _flag(values, "use_rslora", where), ranks, alphas, where, asked)

    @property
    def parameters(self) -> list[str]:
        """`target_parameters`."""
        found = self.extras.get("target_parameters", [])
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise CheckpointError(f"{self.where}: target_parameters={shown(found)} must be a list of names")
        return found

    def rank_of(self, module: str) -> int:
        """module: its full name in the base model. Raises CheckpointError where its patterns are too much work."""
        return self.ranks.get(_key(self._ranks_of, module), self.rank)

    def scaling(self, module: str) -> float:
        """What B(Ax) of a module is multiplied with."""
        rank, alpha = self.rank_of(module), self.alphas.get(_key(self._alphas_of, module), self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def _key(patterns: ModulePatterns, module: str) -> str:
    """As PEFT looks it up."""
    found = patterns.first(module)
    return module if found is None else found


def _refuse(values: dict[str, Any], where: str) -> None:
    if values.get("peft_type") != "LORA":
        raise CheckpointError(
            f"{where}: peft_type is {shown(values.get('peft_type'))}; adapters of type 'LORA' are read"
        )
    for key, why in REFUSED.items():
        if values.get(key):
            raise CheckpointError(f"{where}: {key}={shown(values[key])} is not supported: {why}")
    begun = values.get("init_lora_weights", True)
    if isinstance(begun, str) and begun.lower().startswith(CHANGES_BASE):
        raise CheckpointError(
            f"{where}: init_lora_weights={shown(begun)} is not supported: it changed the base's weights, so the pairs "
            "do not belong to the base as it is; save it converted (PEFT: path_initial_model_for_weight_conversion)"
        )
    for key, value in values.items():
        if key not in TRAINING and key not in READ and key not in REFUSED and key not in EXTRAS and value:
            raise CheckpointError(
                f"{where}: {key}={shown(value)} is not known; an adapter that may mean something else is not loaded"
            )


def _pattern(values: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: {key}={shown(found)} must be an object")
    return found


def _flag(values: dict[str, Any], key: str, where: str) -> bool:
    value = values.get(key, False)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key}={shown(value)} must be true or false")
    return bool(value)


def _rank(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANK:
        raise CheckpointError(f"{where}={shown(value)} must be a whole number from 1 to {MOST_RANK}")
    return value


def _number(value: Any, where: str) -> float:
    try:
        found = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise CheckpointError(f"{where}={shown(value)} must be a finite number")
    return found
