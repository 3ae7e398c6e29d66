"""A tokenizer's own Jinja chat template, as the prefix and suffix of each turn.

A program writes turn by turn, with contents that are not known yet. So the template is rendered with marks
in place of the contents, and the text around the marks is what surrounds the turns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import ProgramError
from .chat_turn_template import ChatTemplate, Messages

Roles = tuple[str, ...]


class JinjaChatTemplate(ChatTemplate):
    """Prefixes and suffixes by probing `tokenizer.render_chat`, with roles and contents in the form that the
    template shows. BOS is left to the tokenizer if it adds one.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__("tokenizer", None, {})
        self._tokenizer = tokenizer
        self._bos = _bos_text(tokenizer)
        self._split = lru_cache(maxsize=1024)(self._probe)
        self.stop_str = self._find_stops()

    def get_prefix_and_suffix(self, role: str, hist_messages: Messages) -> tuple[str, str]:
        return self._split(tuple(message["role"] for message in hist_messages), role)

    def get_prompt(self, messages: Messages) -> str:
        known = [message for message in messages if message["content"] is not None]
        return self._without_bos(self._tokenizer.render_chat(self._tokenizer.chat_messages(known)))

    def _probe(self, history: Roles, role: str) -> tuple[str, str]:
        position = len(history)
        texts = self._texts(history, role)
        before = self._without_bos(texts[0]) if position == 0 else texts[position]
        written = self._split(history[:-1], history[-1])[1] if history else ""
        prefix = before.removeprefix(written)
        if role == "assistant":
            prefix = self._generation_prompt(history, written) or prefix
        return prefix, self._suffix(history, role)

    def _texts(self, history: Roles, role: str) -> list[str]:
        """The texts before, between and after the contents, up to a turn of `role`."""
        turns = (*history, role)
        for following in ((), ("user",), ("assistant",)):
            texts = self._render((*turns, *following))
            if texts is not None:
                return texts
        raise ProgramError(
            f"the chat template of the model's tokenizer does not render turns of {', '.join(turns)}; change the "
            f"order of the roles, or set engine.chat_template"
        )

    def _suffix(self, history: Roles, role: str) -> str:
        """What closes the turn; nothing where the template writes it only with the next turn."""
        turns = (*history, role)
        alone, followed = self._render(turns), self._render((*turns, "user"))
        if alone is None:
            return ""
        if followed is not None and not followed[len(turns)].startswith(alone[-1]):
            return ""
        return alone[-1]

    def _generation_prompt(self, history: Roles, written: str) -> str:
        texts = self._render(history, add_generation_prompt=True)
        if texts is None:
            return ""
        last = texts[-1] if history else self._without_bos(texts[-1])
        return last.removeprefix(written)

    def _render(self, roles: Roles, add_generation_prompt: bool = False) -> list[str] | None:
        """The texts around the contents of turns of `roles`; None where the template refuses or skips one."""
        marks = [f"sgl:turn:{index}:" for index in range(len(roles))]
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        try:
            rest = self._tokenizer.render_chat(
                self._tokenizer.chat_messages(messages), add_generation_prompt=add_generation_prompt
            )
        except Exception as error:
            if getattr(error, "hopeless", False):
                raise ProgramError(f"the chat template of the model's tokenizer cannot be used: {error}") from error
            return None
        texts = []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                return None
            texts.append(before)
        return [*texts, rest]

    def _find_stops(self) -> tuple[str, ...]:
        """The special token that ends the model's turn."""
        suffix = self._suffix(("user",), "assistant").strip()
        ids = self._tokenizer.encode(suffix).tolist() if suffix else []
        if not ids or ids[0] not in self._tokenizer.special_ids:
            return ()
        return (self._tokenizer.token_bytes[ids[0]].decode(),)

    def _without_bos(self, text: str) -> str:
        return text.removeprefix(self._bos) if self._bos else text


def _bos_text(tokenizer: Any) -> str:
    """The text of the BOS token, if the tokenizer puts one before a text by itself."""
    ids = tokenizer.encode("", special_prefix=True).tolist()
    return tokenizer.token_bytes[ids[0]].decode() if ids and ids[0] == tokenizer.bos_id else ""
