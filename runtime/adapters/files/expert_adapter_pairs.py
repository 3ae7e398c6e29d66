"""Reads the pairs of an adapter that are of mixtures of experts: of their modules, and of parameters
(`target_parameters`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError
from ...loading.tensor_files.safetensors_header import FLOATS, StoredTensor
from ...loading.tensor_files.tensor_source import WeightSource
from ...models.spec.model_spec import ModelSpec
from ..adapter_extras import Pair
from .adapter_base_weights import BaseWeights
from .expert_adapter_targets import expert_modules_of
from .peft_config import PeftConfig

A, B = ".lora_A.weight", ".lora_B.weight"
DEEPER = ".base_layer"  # what PEFT appends to a module's name for each further parameter of it


class ExpertAdapterPairs:
    """For one adapter. tensor: reads one in float32, or raises.  base: the model's weights."""

    def __init__(
        self,
        model: ModelSpec,
        source: WeightSource,
        config: PeftConfig,
        tensor: Callable[[StoredTensor], Tensor],
        base: BaseWeights,
    ) -> None:
        self._mixtures, self._source, self._config, self._tensor, self._base = (
            expert_modules_of(model),
            source,
            config,
            tensor,
            base,
        )
        self._found: dict[str, list[Pair]] = {}

    def read(self, found: dict[str, dict[str, StoredTensor]]) -> dict[str, list[Pair]]:
        """By module; what is read is taken out of `found`, tensors by module, as the model calls it, and by their
        ends."""
        parameters: dict[str, list[str]] = {}
        for module in [module for module, parts in found.items() if set(parts) & {A, B}]:
            if self._base.no_mixtures and self._mixtures.layer_of(module) is not None:
                raise CheckpointError(
                    f"{self._source.name}: tensor {shown(next(iter(found[module].values())).name)} is not supported: "
                    f"{self._base.no_mixtures}; merge the adapter into its base"
                )
            if module in self._mixtures.modules:
                self._of_module(module, found.pop(module))
            elif self._mixtures.layer_of(module) is not None:
                parameters.setdefault(module.removesuffix(DEEPER * module.count(DEEPER)), []).append(module)
        for module, nested in parameters.items():
            self._of_parameters(module, {name: found.pop(name) for name in sorted(nested, key=len, reverse=True)})
        return self._found

    def _of_module(self, module: str, parts: dict[str, StoredTensor]) -> None:
        target, rank = self._mixtures.modules[module], self._config.rank_of(module)
        first, second = self._pair(module, parts, [rank, target.inputs], [target.outputs, rank])
        self._put(module, first, second, self._config.scaling(module))

    def _of_parameters(self, module: str, nested: dict[str, dict[str, StoredTensor]]) -> None:
        """nested: of the parameters of one module their pairs, the first one's first."""
        named = [
            name
            for name in dict.fromkeys(each.rpartition(".")[2] for each in self._config.parameters)
            if self._names(f"{module}.{name}")
        ]
        asked = list(named)
        for name, parts in nested.items():
            stored = next(iter(parts.values()))
            fits = [parameter for parameter in asked if self._targets(f"{module}.{parameter}", parts)]
            if not fits:
                found_here = (
                    f"target_parameters names {', '.join(named)}" if named else "target_parameters names nothing of it"
                )
                raise CheckpointError(
                    f"{self._source.name}: tensor {shown(stored.name)} has shape {stored.shape}, which is that of no "
                    f"parameter of {shown(module)} here; {found_here}"
                )
            parameter = fits[0]
            asked.remove(parameter)
            self._of_all(name, f"{module}.{parameter}", parts)
        if asked:
            raise CheckpointError(
                f"{self._source.name} lacks the pair of {shown(f'{module}.{asked[0]}')}, which target_parameters names"
            )

    def _of_all(self, module: str, parameter: str, parts: dict[str, StoredTensor]) -> None:
        """A of PEFT is [experts * rank, inputs], B [outputs, rank * experts]."""
        targets, rank = self._targets(parameter, parts), self._config.rank_of(parameter)
        sizes = [self._mixtures.modules[name].outputs for name in targets[0]]
        count, inputs, outputs = len(targets), self._mixtures.modules[targets[0][0]].inputs, sum(sizes)
        first, second = self._pair(module, parts, [count * rank, inputs], [outputs, rank * count])
        for names, a, b in zip(
            targets, first.view(count, rank, inputs), second.view(outputs, rank, count).permute(2, 0, 1), strict=True
        ):
            for name, rows in zip(names, b.split(sizes), strict=True):
                self._put(name, a, rows, self._config.scaling(parameter))

    def _targets(self, parameter: str, parts: dict[str, StoredTensor]) -> list[list[str]]:
        """Of each expert the modules whose rows it has."""
        layer = self._mixtures.layer_of(parameter)
        if layer is None or A not in parts or B not in parts or len(parts[A].shape) != 2 or len(parts[B].shape) != 2:
            return []
        return self._mixtures.fused(layer, parameter.rpartition(".")[2], parts[B].shape[0], parts[A].shape[1])

    def _names(self, parameter: str) -> bool:
        """Whether the configuration asks for it, as PEFT matches them."""
        return any(parameter == each or parameter.endswith(f".{each}") for each in self._config.parameters)

    def _pair(
        self, module: str, parts: dict[str, StoredTensor], of_a: list[int], of_b: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The two halves, of these shapes."""
        strange = next((stored for end, stored in parts.items() if end not in (A, B)), None)
        if strange is not None:
            raise CheckpointError(
                f"{self._source.name}: tensor {shown(strange.name)} is not supported: modules of experts take plain "
                "pairs; merge the adapter into its base"
            )
        for end, shape in ((A, of_a), (B, of_b)):
            if end not in parts:
                raise CheckpointError(f"{self._source.name} lacks {shown(module + end)}, the other half of a pair")
            if (stored := parts[end]).shape != shape or stored.dtype not in FLOATS:
                raise CheckpointError(
                    f"{self._source.name}: tensor {shown(stored.name)} holds {stored.dtype} of shape {stored.shape}; "
                    f"the configuration and the model ask for floats of {shape}"
                )
        return self._tensor(parts[A]), self._tensor(parts[B])

    def _put(self, module: str, first: Tensor, second: Tensor, scale: float) -> None:
        """In the model's type: ranks that have all of it share it."""
        self._found.setdefault(module, []).append(
            (first.to(self._base.dtype).contiguous(), second.to(self._base.dtype).contiguous(), scale)
        )
