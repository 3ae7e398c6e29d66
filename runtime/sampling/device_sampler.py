"""The sampler of a GPU: everything is queued, nothing waits, and the tokens come back after an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.kernels.sampling_kernels import CHUNK, STEP_WORDS, draw
from sgl.runtime.sampling.sampler import Places, SampledTokens, adjust, mark_errors, place_logprobs
from sgl.runtime.sampling.sampling_batch import SamplingBatch
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sampling.sampling_row import SamplingRow
from sgl.runtime.sampling.token_logprobs import paired, raw_logprobs, within_masks
from sgl.runtime.sampling.token_masks import PackedMaskPool, by_bits
from sgl.runtime.step.device_upload import fetch, upload


class DeviceSampler:
    """Chooses the tokens that `Sampler` chooses; `launch` asks the device for them and does not wait.

    All launches must be queued on one stream. Uploaded masks are kept between steps.
    """

    def __init__(self, vocab_size: int | None, device: torch.device, chunk: int = CHUNK) -> None:
        self.vocab_size, self.device = vocab_size, device
        self._chunk = chunk
        self._pool: PackedMaskPool | None = None
        self._nowhere = torch.zeros(1, dtype=torch.int32, device=device)

    @torch.inference_mode()
    def launch(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Sequence[int],
        mask_rows: Sequence[np.ndarray | None] | None = None,
        last: Tensor | None = None,
        places: Places | None = None,
    ) -> Callable[[], SampledTokens]:
        """As `LaunchesSampling.launch` says; nothing here waits for the device."""
        width = logits.shape[1] if self.vocab_size is None else min(self.vocab_size, logits.shape[1])
        tensors = batch.tensors(width, self.device)
        adjusted = adjust(logits[:, :width], tensors, mask_rows, owned=False)
        steps, masks = self._steps(positions, mask_rows, None if last is None else places, width)
        target = self._nowhere if last is None else last
        chosen = draw(adjusted, width, tensors.table, steps, masks, target, self._chunk)
        if not batch.scored:
            return self._reader(fetch(chosen))
        return self._scored_reader(batch, fetch(chosen, *self._logprobs(logits, chosen, batch, mask_rows)))

    def sample(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Sequence[int],
        mask_rows: Sequence[np.ndarray | None] | None = None,
    ) -> SampledTokens:
        """`launch`, and wait."""
        return self.launch(logits, batch, positions, mask_rows)()

    def warm(self, dtype: torch.dtype, width: int) -> None:
        """Compile all kernels for logits of `dtype` [n, width], those with penalties included; waits for them."""
        logits = torch.zeros((1, width), dtype=dtype, device=self.device)
        for params in (SamplingParams(), SamplingParams(frequency_penalty=0.1)):
            batch = SamplingBatch([SamplingRow(params, 0, [], [0])])
            self.launch(logits, batch, [0], None, self._nowhere, [0])()

    def _steps(
        self, positions: Sequence[int], mask_rows: Sequence[np.ndarray | None] | None, places: Places | None, width: int
    ) -> tuple[Tensor, Tensor]:
        """int32 [n, STEP_WORDS] and the tensor of masks that its second column points into."""
        steps = np.full((len(positions), STEP_WORDS), -1, np.int32)
        steps[:, 0] = positions
        pool = self._masks(width)
        if mask_rows is not None:
            masked = [i for i, mask in enumerate(mask_rows) if mask is not None]
            steps[masked, 1] = pool.places([mask for mask in mask_rows if mask is not None])
        if isinstance(places, Tensor):
            sent = upload(steps, self.device)
            sent[:, 2] = places
            return sent, pool.tensor
        if places is not None:
            steps[:, 2] = places
        return upload(steps, self.device), pool.tensor

    def _masks(self, width: int) -> PackedMaskPool:
        words = (width + 31) // 32
        if self._pool is None or self._pool.tensor.shape[1] != words:
            self._pool = PackedMaskPool(words, self.device)
        return self._pool

    def _logprobs(
        self, logits: Tensor, chosen: Tensor, batch: SamplingBatch, mask_rows: Sequence[np.ndarray | None] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of the rows that asked: float32 [m]; float32 and int64 [m, top]."""
        columns = chosen[:, 0].clamp(min=0).long()
        if len(batch.scored) < len(batch):
            scored = upload(np.array(batch.scored, np.int64), self.device)
            logits, columns = logits.index_select(0, scored), columns.index_select(0, scored)
        if masks := batch.scored_within(mask_rows):
            width = logits.shape[1] if self.vocab_size is None else min(self.vocab_size, logits.shape[1])
            pool = self._masks(width)
            logits = within_masks(logits, masks, lambda rows: by_bits(pool.gather(rows))[:, :width])
        rows = torch.arange(len(logits), device=self.device)
        return raw_logprobs(logits, rows, columns, batch.top, self.vocab_size)

    @staticmethod
    def _reader(ready: Callable[[], list[np.ndarray]]) -> Callable[[], SampledTokens]:
        return lambda: _samples(ready()[0])

    @staticmethod
    def _scored_reader(batch: SamplingBatch, ready: Callable[[], list[np.ndarray]]) -> Callable[[], SampledTokens]:
        def read() -> SampledTokens:
            chosen, logprobs, top_values, top_ids = ready()
            samples = _samples(chosen)
            place_logprobs(samples, batch, logprobs.tolist(), paired(top_values, top_ids))
            return samples

        return read


def _samples(chosen: np.ndarray) -> SampledTokens:
    samples = SampledTokens(chosen[:, 0].tolist())
    peaks = np.ascontiguousarray(chosen[:, 1]).view(np.float32)
    if not np.isfinite(peaks).all():
        mark_errors(samples, peaks)
    return samples
