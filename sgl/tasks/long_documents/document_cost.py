"""What reading a document in pieces costs at most, known before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgl.documents import Document, Piece, pieces
from sgl.documents.token_counts import estimated_tokens
from sgl.lang.backend import Backend
from sgl.lang.backends.scripted.scripted_backend import Scripted
from sgl.lang.errors import BadValueError, BudgetExceeded
from sgl.lang.interpreter.token_usage import Budget, Usage

from ..extract_program import extract_program
from ..nearest_examples import NearestExamples

MOST_TOKENS = 1024  # of an answer
MOST_PIECE_TOKENS = 2000  # a longer piece costs less, and models read it less well
SLACK = 8  # tokens of a prompt that two texts may have more together than one by one


class _Unsent(Scripted):
    """Takes prompts in the form of another backend, and answers that there is nothing."""

    def __init__(self, other: Backend) -> None:
        super().__init__({"value": "{}"}, chat_template=other.get_chat_template())
        self.get_model_name = other.get_model_name  # type: ignore[method-assign]


@dataclass(frozen=True)
class DocumentCost:
    """The most that an extraction from a document costs.

    pieces: of the document. calls: gens, with all retries. prompt_tokens: of all calls, without the messages of
    validators. shared_tokens: those of them that are the same for all pieces, which a prefix cache computes once.
    output_tokens: what the model may write. exact: the tokens are counted by the model's tokenizer, not estimated.
    """

    pieces: int
    calls: int
    prompt_tokens: int
    shared_tokens: int
    output_tokens: int
    exact: bool

    def __str__(self) -> str:
        about = "" if self.exact else "about "
        return (
            f"{self.pieces} piece{'' if self.pieces == 1 else 's'}, at most {self.calls} calls, "
            f"{about}{self.prompt_tokens} prompt tokens ({self.shared_tokens} of them shared) and "
            f"{self.output_tokens} output tokens"
        )

    def check(self, name: str, budget: Budget | int | None, max_pieces: int | None) -> None:
        """Raise BudgetExceeded, before anything runs, if it may cost more than is allowed."""
        if max_pieces is not None and self.pieces > max_pieces:
            raise BudgetExceeded(
                f"{name} has {self.pieces} pieces, max_pieces is {max_pieces}; allow more, or give longer pieces with "
                "tokens="
            )
        budget = Budget(budget) if isinstance(budget, int) else budget
        usage = Usage(
            computed_tokens=self.prompt_tokens - self.shared_tokens,
            generated_tokens=self.output_tokens,
            operations=self.calls,
        )
        if budget is not None and budget.excess(usage):
            raise BudgetExceeded(f"{name} may cost more than its budget {budget}: {self}; allow more, or read less")


@dataclass(frozen=True)
class PieceLimits:
    """How a document is cut: the tokens of a piece and of its overlap, of an answer, and of the prompt around it.

    shared: the tokens of the prompt that are the same for all pieces. exact: `prompt` does not depend on the text.
    """

    tokens: int
    overlap: int
    max_tokens: int
    prompt: int
    shared: int
    exact: bool

    def pieces(self, document: Document, backend: Backend) -> list[Piece]:
        return pieces(document, self.tokens, self.overlap, backend=backend)

    def cost(self, made: Sequence[Piece], retries: int, merging: bool) -> DocumentCost:
        """The bound for these pieces. `merging`: the model decides between their values in one call more."""
        attempts = retries + 1
        longest = self.prompt + self.tokens + SLACK
        prompts = [self.prompt + piece.tokens + SLACK for piece in made] + [longest] * merging
        again = sum(range(attempts)) * self.max_tokens * len(prompts)
        return DocumentCost(
            len(made),
            attempts * len(prompts),
            attempts * sum(prompts) + again,
            self.shared * max(0, len(made) - 1),
            attempts * len(prompts) * self.max_tokens,
            self.exact and all(piece.exact for piece in made),
        )


def piece_limits(
    arguments: Mapping[str, Any], backend: Backend, tokens: int | None, overlap: int | None, max_tokens: int | None
) -> PieceLimits:
    """Limits that fit the context of the model, where it is known: that of an embedded engine.

    arguments: those of the program that reads a piece. Raises BadValueError where no text would fit.
    """
    context = backend.get_server_info().get("context") if getattr(backend, "tokenizer", None) else None
    answer = max_tokens or (MOST_TOKENS if context is None else min(MOST_TOKENS, context // 4))
    examples = arguments["examples"]
    by_text = isinstance(examples, NearestExamples)
    prompt = prompt_tokens({**arguments, "examples": examples.longest} if by_text else arguments, backend)
    shared = prompt_tokens({**arguments, "examples": []}, backend) if by_text else prompt
    room = MOST_PIECE_TOKENS if context is None else context - prompt - answer - SLACK
    chosen = min(room, MOST_PIECE_TOKENS) if tokens is None else tokens
    if (chosen > room and context is not None) or chosen < 1:
        raise BadValueError(
            f"a piece of {max(1, chosen)} tokens, a prompt of {prompt} around it and an answer of {answer} do not fit "
            f"the context of {context} tokens: give a smaller tokens= or max_tokens=, or shorter instructions"
        )
    return PieceLimits(chosen, chosen // 10 if overlap is None else overlap, answer, prompt, shared, not by_text)


def prompt_tokens(arguments: Mapping[str, Any], backend: Backend) -> int:
    """The tokens of the prompt around a text. The program makes it for an empty text; nothing is asked of the model."""
    unsent = _Unsent(backend)
    extract_program.run(**{**arguments, "text": "", "details": False}, backend=unsent)
    prompt = unsent.calls[0].prompt
    tokenizer = getattr(backend, "tokenizer", None)
    return estimated_tokens(prompt) if tokenizer is None else len(tokenizer.encode(prompt, special_prefix=True))
