"""What drafts: the protocol, and what a grammar leaves of a draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sgl.grammars.automaton.grammar_automaton import GUESSED
from sgl.grammars.automaton.python_automaton_core import DEAD

from ..sequences.draft_tokens import DraftTokens
from ..sequences.jump_forward import MIN_BYTES

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..sequences.ops.generate_op import Generate
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import SequenceState


TURNS, ENOUGH = 2, 8  # how often a draft goes on with something else, and from how many tokens on it does not
BUILT = 8 << 20  # bytes of an automaton, beyond which drafts add nothing to it


Onward = Callable[[DraftTokens, "Matcher"], list[int]]  # of a draft and the grammar after it: what may come then


class Drafter(Protocol):
    """Called on the scheduler thread only.

    One that has `onward(seq, tokens, matcher)` is asked again where the grammar refuses a draft: for what may follow
    these tokens of it, with the grammar there; []: no idea.
    """

    def propose(self, seq: SequenceState, op: Generate, most: int) -> DraftTokens | None:
        """Up to `most` tokens, which need not be what the grammar allows; None: no idea."""
        ...

    def learn(self, seq: SequenceState, decoding: RunningGeneration) -> None:
        """A generation ended: the tokens of `seq` from `decoding.prompt_tokens` on are its text."""
        ...

    def forget(self) -> None:
        """Drop what was learned of finished texts."""
        ...


def fitted(
    draft: DraftTokens, decoding: RunningGeneration, most: int, onward: Onward | None = None
) -> DraftTokens | None:
    """Its longest part that the grammar allows, and does not end within; None: nothing.

    With what the grammar would force between.

    onward: what to go on with where no more of it is allowed.
    """
    if decoding.matcher is None:
        return draft.cut(most)
    found, matcher, given, turns = (
        DraftTokens([], draft.source),
        decoding.matcher,
        draft.tokens[::-1],
        0 if onward is None else TURNS,
    )
    builds, jumps = (
        may_build_states(matcher),
        decoding.life.text.jumps if decoding.jumps and decoding.life.may_jump else None,
    )
    while len(found.tokens) < most:
        before, matcher = matcher, matcher.copy()
        if not given or not follow(matcher, given[-1], builds):
            if onward is None or not (turns and 0 < len(found.tokens) < ENOUGH):
                break
            given, matcher, turns = onward(found, before)[::-1], before, turns - 1
            found.joints.append(len(found.tokens))
            continue
        token = given.pop()
        if matcher.finished or not (builds or matcher.known_mask() is not None):
            break
        found.tokens.append(token)
        found.choices.append(token)
        found.matchers.append(matcher)
        if jumps is None or not builds or len(matcher.forced()) < MIN_BYTES:
            continue
        following = matcher.copy()
        jump = jumps.jump(following, [*decoding.output, *found.tokens], decoding.limit)
        if jump is not None and (jump.drop or following.finished):
            break
        if jump is not None:
            _add_forced(found, jump.token_ids, matcher)
            matcher, given = following, _rest(given, jump.token_ids)
    return found.cut(most) if found.tokens else None


def _add_forced(draft: DraftTokens, tokens: list[int], matcher: Matcher) -> None:
    """Tokens that are not chosen, after a matcher."""
    draft.tokens += tokens
    draft.choices += [None] * len(tokens)
    draft.matchers += _along(matcher, tokens)


def _along(matcher: Matcher, tokens: list[int]) -> list[Matcher]:
    """The matcher after each of some tokens that it allows."""
    found = []
    for token in tokens:
        matcher = matcher.copy()
        matcher.accept(token)
        found.append(matcher)
    return found


def _rest(given: list[int], forced: list[int]) -> list[int]:
    """What is said to follow forced tokens, if they were said to come; given: the last first."""
    return given[: len(given) - len(forced)] if given[-1 : -len(forced) - 1 : -1] == forced else []


def may_build_states(matcher: Matcher) -> bool:
    """Whether drafts may add states to the automaton, which all its texts share: while there are few of them.

    The automaton has room for as many on top of its limit, so that no text fails for want of what was drafted.
    """
    automaton = matcher.automaton
    return automaton.core.size() < automaton.limit // GUESSED and automaton.core.memory() < BUILT


def follow(matcher: Matcher, token: int, builds: bool) -> bool:
    """Move the matcher over a draft token; False, and no move, where it is not allowed, or may not add states."""
    return (builds or (matcher.state, token) in matcher.automaton.moves) and matcher.accept(token)


def may_follow(matcher: Matcher, token: int) -> bool:
    """Whether `follow` would move it."""
    found = matcher.automaton.moves.get((matcher.state, token))
    return found != DEAD if found is not None else may_build_states(matcher) and matcher.copy().accept(token)
