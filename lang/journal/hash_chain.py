"""What a stream holds, as a chain of parts whose hash is the address of what is asked next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..backend import Media
from ..concurrency.one_shot_callbacks import when_done
from .journal_node import JournalNode

Part = bytes | Future[JournalNode]

# No UTF-8 text has the byte 0xff, so no literal can look like one of these marks.
_BEGIN, _END, _RESULT, _MEDIA, _ASKED, _ADAPTER = (b"\xff" + mark for mark in (b"b", b"e", b"r", b"m", b"?", b"a"))


class HashChainLink:
    """The content up to here: that of `before` and one part more, which may be a result that is not there yet.

    Literals hash as one text however they were cut. A link that is known releases what precedes it; streams
    share links, so that its state is one value: a hash, or (before, part).
    """

    __slots__ = ("_state",)

    def __init__(self, before: HashChainLink | None = None, part: Part = b"") -> None:
        self._state: Any = hashlib.blake2b(digest_size=16) if before is None else (before, part)

    def address(self, request: str) -> str | None:
        """The address of a request after this content; None while a result in it is missing.

        Raises the error of a result that failed.
        """
        hasher = self._known()
        return hasher and address(hasher, request)

    def when_known(self, call: Callable[[], object]) -> None:
        """Call back once no result is missing any more (or one has failed)."""
        _, unhashed = self._unhashed()
        missing = [part for _, part in reversed(unhashed) if isinstance(part, Future) and not part.done()]
        if not missing:
            call()
        else:
            when_done(missing[0], lambda done: call() if done.exception() else self.when_known(call))

    def _known(self) -> Any:
        hasher, unhashed = self._unhashed()
        for link, part in reversed(unhashed):
            if isinstance(part, Future):
                if not part.done():
                    return None
                part = result_part(part.result().added)
            hasher = hasher.copy()
            hasher.update(part)
            link._state = hasher
        return hasher

    def _unhashed(self) -> tuple[Any, list[tuple[HashChainLink, Part]]]:
        """The nearest hash that is known, and from here back to it the links that have none."""
        unhashed: list[tuple[HashChainLink, Part]] = []
        link = self
        while isinstance(state := link._state, tuple):
            unhashed.append((link, state[1]))
            link = state[0]
        return state, unhashed


def address(hasher: Any, request: str) -> str:
    final = hasher.copy()
    final.update(_ASKED + encode(request))
    return str(final.hexdigest())


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def result_part(text: str) -> bytes:
    return _RESULT + encode(text) + _END


def result_place() -> bytes:
    """Stands for any result where only the shape of the content counts."""
    return _RESULT + _END


def adapter_part(adapter: str | None) -> bytes:
    """From here on another adapter computes."""
    return _ADAPTER + encode(adapter or "") + _END


def turn_part(role: str, text: str, begins: bool) -> bytes:
    return (_BEGIN if begins else _END) + encode(role) + _MEDIA + encode(text)


def media_part(media: Media, token: str) -> bytes:
    return b"".join((_MEDIA, encode(f"{media.kind} {media.num_frames} {token} "), _content(media.source), _END))


def _content(source: Any) -> bytes:
    """The bytes of a picture, whatever it was given as; of an address elsewhere, the address."""
    if isinstance(source, bytes):
        return hashlib.blake2b(source).digest()
    if isinstance(source, str | Path):
        local = len(str(source)) < 4096 and Path(source).is_file()
        return _content(Path(source).read_bytes()) if local else encode(str(source))
    if hasattr(source, "tobytes"):
        return encode(f"{getattr(source, 'mode', '')}{getattr(source, 'size', '')}") + _content(source.tobytes())
    return encode(repr(source))
