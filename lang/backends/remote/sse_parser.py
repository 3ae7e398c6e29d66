"""Server-sent events out of the bytes of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The data of each event. An event that the end of the bytes cuts is left out.

    Lines end at line feeds only: JSON may hold other characters that str.splitlines breaks at.
    """
    rest, lines = b"", []
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield b"\n".join(lines).decode(errors="replace")
                lines = []
