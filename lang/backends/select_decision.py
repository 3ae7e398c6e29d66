"""The end of every select: log-probabilities become a decision."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend import SelectRequest
from ..sampling.choices import GREEDY, ChoicesDecision, TokenLogprob, choice_probabilities, draw, mean_logprob, tempered

Rows = list[list[TokenLogprob]]


def conclude_select(
    request: SelectRequest, scored: Rows, outputs: Rows | None = None, priors: Rows | None = None
) -> ChoicesDecision:
    """Choose by the method of the request, or, with a temperature, draw by the probabilities of the choices.

    A row belongs to a choice and has [log-probability, token id, text] of each token that is scored; the
    rows of all choices begin at the same place. `outputs` are the tokens after the choices, `priors` the
    rows without the prompt. The decision's meta_info has `choice_probs` besides what the method returns.
    """
    decision = request.method(
        choices=list(map(str, request.choices)),
        normalized_prompt_logprobs=[mean_logprob(row) for row in scored],
        input_token_logprobs=scored,
        output_token_logprobs=outputs or [[] for _ in scored],
        unconditional_token_logprobs=priors,
    )
    if decision.decision not in request.choices:
        raise ValueError(f"{request.method!r} decided for {decision.decision!r}, which is none of {request.choices}")
    probabilities = choice_probabilities(scored)
    meta = {**(decision.meta_info or {}), "choice_probs": probabilities}
    return ChoicesDecision(_chosen(request, decision.decision, probabilities), meta)


def _chosen(request: SelectRequest, by_method: str, probabilities: Sequence[float]) -> str:
    if request.temperature <= GREEDY:
        return by_method
    return request.choices[draw(tempered(probabilities, request.temperature), request.seed)]
