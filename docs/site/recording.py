"""Record a terminal session as one animated SVG: what is typed here is really run, and shown at its real speed.

    pip install pyte
    python docs/site/recording.py docs/recording.svg

The session runs in a pseudo-terminal; a terminal emulator (pyte) shows the screen after each piece of
output.
A row of the screen becomes a text for each content that it had, visible from its first to its last moment. Readers who
ask for less motion see the last screen.
"""

from __future__ import annotations

import argparse
import html
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ
from typing import NamedTuple

import pyte

ROOT = Path(__file__).parents[2]
COLUMNS, ROWS = 106, 36
CELL, LINE, MARGIN = 7.8, 17, 14
TYPING = 0.03  # seconds a key
COLOURS = {
    "default": "#d8dee9",
    "black": "#6b7489",
    "red": "#e0707a",
    "green": "#a3c98a",
    "brown": "#e5c07b",
    "blue": "#81a1c1",
    "magenta": "#b48ead",
    "cyan": "#88c0d0",
    "white": "#eceff4",
}
SESSION = (  # what is typed, seconds to look at what it printed
    ("cat examples/quickstart.py", 4.0),
    ("python examples/quickstart.py", 2.5),
    ("clear", 0.0),
    ("python examples/stream_in_terminal.py --streams 3 --slowly 0.05", 3.0),
)


class Run(NamedTuple):
    """Neighbouring characters of one look."""

    column: int
    text: str
    colour: str
    bold: bool


Row = tuple[Run, ...]


class Shown(NamedTuple):
    """What a row of the screen held from one moment to another, in seconds."""

    row: int
    runs: Row
    begin: float
    end: float


class Recorder:
    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.now: list[Row] = [()] * ROWS
        self.since = [0.0] * ROWS
        self.history: list[Shown] = []
        self.started = time.monotonic()

    def clock(self) -> float:
        return time.monotonic() - self.started

    def feed(self, output: bytes) -> None:
        self.stream.feed(output)
        moment = self.clock()
        for row in range(ROWS):
            if (seen := look(self.screen, row)) != self.now[row]:
                self._keep(row, moment)
                self.now[row], self.since[row] = seen, moment

    def finish(self) -> float:
        moment = self.clock()
        for row in range(ROWS):
            self._keep(row, moment)
        return moment

    def _keep(self, row: int, moment: float) -> None:
        if self.now[row] and moment > self.since[row]:
            self.history.append(Shown(row, self.now[row], self.since[row], moment))

    def type(self, text: str) -> None:
        for key in text:
            self.feed(key.encode())
            time.sleep(TYPING)

    def run(self, command: str) -> None:
        """Type a command at a prompt, run it in a pseudo-terminal and watch it."""
        self.feed(b"\x1b[36m$\x1b[0m ")
        self.type(command)
        self.feed(b"\r\n")
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, pack("HHHH", ROWS, COLUMNS, 0, 0))
        process = subprocess.Popen(
            command, shell=True, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
        )
        os.close(theirs)
        for output in _outputs(ours):
            self.feed(output)
        if process.wait():
            raise SystemExit(f"{command!r} ended with code {process.returncode}:\n" + "\n".join(self.screen.display))


def environment() -> dict[str, str]:
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}


def _outputs(descriptor: int) -> Iterator[bytes]:
    try:
        while True:
            select.select([descriptor], [], [])
            yield os.read(descriptor, 65536)
    except OSError:  # the other end is closed: the command has ended
        os.close(descriptor)


def look(screen: pyte.Screen, row: int) -> Row:
    """The runs of a row, without blanks at its end."""
    runs: list[Run] = []
    for column in range(COLUMNS):
        cell = screen.buffer[row][column]
        colour = COLOURS.get(cell.fg) or (f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
        last = runs[-1] if runs else None
        if last and (last.colour, last.bold) == (colour, cell.bold):
            runs[-1] = last._replace(text=last.text + cell.data)
        else:
            runs.append(Run(column, cell.data, colour, cell.bold))
    return tuple(run for run in runs if run.text.strip())


def svg(history: list[Shown], seconds: float) -> str:
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    moments = sorted({(shown.begin, shown.end) for shown in history})
    names = {span: f"t{i}" for i, span in enumerate(moments)}
    styles = [_timing(names[span], *span, seconds) for span in moments]
    texts = [_text(shown, names[shown.begin, shown.end]) for shown in history]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">\n'
        f"<title>A terminal: a program of sgl, its answer, then three programs that write side by side</title>\n"
        f"<style>text {{ white-space: pre }} g g {{ visibility: hidden }}\n{''.join(styles)}</style>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#242933"/>\n<g>\n{"".join(texts)}</g>\n</svg>\n'
    )


def _timing(name: str, begin: float, end: float, seconds: float) -> str:
    """Visible from begin to end, each time around; the last frame stays without motion."""
    first, last = 100 * begin / seconds, 100 * end / seconds
    frames = [f"0%{{visibility:{'visible' if begin <= 0 else 'hidden'}}}", f"{first:.2f}%{{visibility:visible}}"]
    frames += [] if end >= seconds else [f"{last:.2f}%,100%{{visibility:hidden}}"]
    still = (
        f"@media (prefers-reduced-motion: reduce){{.{name}{{animation:none;visibility:visible}}}}"
        if end >= seconds
        else ""
    )
    stop = f"@media (prefers-reduced-motion: reduce){{.{name}{{animation:none}}}}" if end < seconds else ""
    return (
        f".{name}{{animation:{name} {seconds:.2f}s step-end infinite}}@keyframes "
        f"{name}{{{''.join(frames)}}}{still}{stop}\n"
    )


def _text(shown: Shown, name: str) -> str:
    y = MARGIN + (shown.row + 0.8) * LINE
    spans = "".join(
        f'<text x="{MARGIN + run.column * CELL:g}" y="{y:g}" fill="{run.colour}" '
        f'textLength="{len(run.text.rstrip()) * CELL:g}"'
        f"{' font-weight=' + chr(34) + 'bold' + chr(34) if run.bold else ''}>{html.escape(run.text.rstrip())}</text>"
        for run in shown.runs
    )
    return f'<g class="{name}">{spans}</g>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    recorder = Recorder()
    for command, pause in SESSION:
        recorder.run(command)
        time.sleep(pause)
    seconds = recorder.finish()
    args.file.write_text(svg(recorder.history, seconds), encoding="utf-8")
    print(f"{args.file}: {seconds:.1f} s, {args.file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
