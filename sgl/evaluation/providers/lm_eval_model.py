"""lm-evaluation-harness's models on the embedded engine.

The harness has no plugins: to import this module registers `sgl`, for `lm_eval.simple_evaluate(model="sgl", ...)`. Its
command line with that import is `python -m sgl.evaluation.providers.lm_eval_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from sgl.lang.errors import BadValueError
from sgl.runtime.sampling.sampling_params import SamplingParams

from .engine_choice import engine_named

Item = TypeVar("Item")
DEFAULT_DEVICE = "cuda:0"  # of the harness's command line, also on machines without one
WINDOW = 256  # requests that are given to the engine at once
END = "\ue0e0"  # marks the end of a message while a template renders it
TAKEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


@register_model("sgl")
class SglLM(TemplateLM):
    """A model of lm-evaluation-harness that an engine in this process runs.

    pretrained: `nano`, or what `sgl.Engine` loads. engine: an open one instead. max_length: tokens of a prompt and what
    follows; longer ones lose their beginning. max_gen_toks: of a generation whose task gives none. options: of
    `sgl.Engine`. The harness's batch_size has no effect: the engine makes its own batches. Its default device, cuda:0,
    means the one that the engine finds best.
    """

    def __init__(
        self,
        pretrained: str = "nano",
        engine: Any = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if device not in (None, DEFAULT_DEVICE):
            options["device"] = device
        self.engine = engine_named(pretrained, options) if engine is None else engine
        self.max_length = max_length or int(self.engine.fixed_info["context"]) - 1
        self.max_gen_toks = max_gen_toks

    @property
    def eot_token_id(self) -> int:
        return int(next(iter(self.engine.tokenizer.eos_ids)))

    @property
    def prefix_token_id(self) -> int:
        begin = self.engine.tokenizer.bos_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        return str(self.engine.model_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.engine.tokenizer.chat_template or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text; without `add_generation_prompt` up to the end of the last message's content."""
        render: Callable[..., str] = self.engine.tokenizer.render_chat
        if add_generation_prompt:
            return render(chat_history, True)
        *before, last = chat_history
        text, found, _ = render([*before, {**last, "content": last["content"] + END}]).rpartition(END)
        if not found:
            raise BadValueError("the model's chat template leaves out the end of the last message, which is to go on")
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """As a prompt, with the tokens that begin one, unless `add_special_tokens` is False."""
        tokens: list[int] = self.engine.tokenizer.encode(
            string, special_prefix=add_special_tokens is not False
        ).tolist()
        return tokens

    def _loglikelihood_tokens(
        self, requests: Any, disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Of each (texts, context, continuation): the log-probability of the continuation, and whether it is greedy."""
        cut = [self._cut(context, continuation) for _, context, continuation in requests]
        found: list[tuple[float, bool]] = []
        with self._progress(len(cut), disable_tqdm) as bar:
            for some in _windows(cut):
                groups = [(list(one), [c for _, c in group]) for one, group in groupby(some, itemgetter(0))]
                for pairs in [self._submit_continuations(context, continuations) for context, continuations in groups]:
                    found += [_likelihood(continuation, *future.result()) for continuation, future in pairs]
                bar.update(len(some))
        for (texts, *_), result in zip(requests, found, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, result)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of each text; one longer than the context in pieces, each with as much before it as fits."""
        pieces = [list(self._pieces(request.args[0])) for request in requests]
        found = iter(self._loglikelihood_tokens([one for each in pieces for one in each], disable_tqdm))
        totals = [sum(next(found)[0] for _ in each) for each in pieces]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text up to one of the `until`, which is not in it."""
        found: list[str] = []
        with self._progress(len(requests), disable_tqdm) as bar:
            for some in _windows(requests):
                for future in [self._submit_generation(*request.args) for request in some]:
                    found.append(future.result().text)
                    bar.update()
        for request, text in zip(requests, found, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return found

    def _submit_continuations(
        self, context: list[int], continuations: list[list[int]]
    ) -> list[tuple[list[int], Future[Any]]]:
        """Log-probabilities of continuations, in forks that share the context."""
        parent = self.engine.open()
        parent.extend(context)
        forks = parent.fork(len(continuations))
        parent.close()
        asked = []
        for fork, continuation in zip(forks, continuations, strict=True):
            fork.extend(continuation)
            asked.append((continuation, fork.logprobs(len(context), top=1)))
            fork.close()
        return asked

    def _submit_generation(self, context: str, given: dict[str, Any]) -> Future[Any]:
        options: dict[str, Any] = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        until, most = options.pop("until"), options.pop("max_gen_toks")
        if not options.pop("do_sample"):
            options["temperature"] = 0.0
        if strange := options.keys() - set(TAKEN):
            raise BadValueError(f"a task generates with {min(strange)!r}; sgl takes {', '.join(TAKEN)} and until")
        sequence = self.engine.open()
        sequence.extend(self.tok_encode(context)[-max(1, self.max_length - most) :])
        stop = tuple(text for text in until or () if text)
        asked: Future[Any] = sequence.generate(SamplingParams(max_tokens=most, stop=stop, **options))
        sequence.close()
        return asked

    def _cut(self, context: list[int], continuation: list[int]) -> tuple[tuple[int, ...], list[int]]:
        """The end of both that fits; the last token is not computed. The context is hashable: equal ones are shared."""
        if not 0 < len(continuation) <= self.max_length:
            raise BadValueError(f"a continuation has {len(continuation)} tokens; give 1 to {self.max_length}")
        tokens = [*context, *continuation][-(self.max_length + 1) :]
        return tuple(tokens[: -len(continuation)]), list(continuation)

    def _pieces(self, text: str) -> Iterator[tuple[None, list[int], list[int]]]:
        windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
        return ((None, *make_disjoint_window(window)) for window in windows)

    @staticmethod
    def _progress(total: int, disabled: bool) -> Any:
        return tqdm(total=total, disable=disabled, desc="sgl")


def _windows(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[begin : begin + WINDOW] for begin in range(0, len(items), WINDOW))


def _likelihood(tokens: list[int], pairs: list[Any], tops: list[Any]) -> tuple[float, bool]:
    """The sum, and whether each token is the likeliest one of its place."""
    greedy = all(top[0][1] == token for top, token in zip(tops, tokens, strict=True))
    return float(sum(value for value, _ in pairs)), greedy


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
