"""A terminal that fills while the model writes: several streams side by side, drawn by rich.

    pip install rich
    python examples/stream_in_terminal.py [--streams 4] [--slowly 0.02]

Every row is one program: its intent appears when it is chosen, its JSON grows piece by piece. One event loop reads all
streams; a slow reader (--slowly, seconds a piece) does not delay the others. The questions are those of
extract_bookings.py, the dialogues are from Schema-Guided Dialogue (CC BY-SA 4.0).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from extract_bookings import SAMPLE, TASK, about, intents, slots, transcript

import sgl

try:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text
except ImportError as missing:
    raise SystemExit(f"this example draws with rich ({missing}): pip install rich") from missing


@sgl.function
def track(s: sgl.State, turns: list[tuple[str, str]], service: dict[str, Any]):
    s += sgl.system(TASK) + sgl.user(transcript(turns))
    s += sgl.user(sgl.fields(slots(service), about(service)))
    s += sgl.assistant(sgl.select("intent", intents(service)))
    s += sgl.assistant(sgl.gen("slots", max_tokens=200, json_schema=slots(service, "dontcare")))


class Row:
    """What is known of one stream so far."""

    def __init__(self, item: dict[str, Any]) -> None:
        self.item, self.intent, self.text, self.pieces, self.seconds = item, "", "", 0, 0.0

    async def follow(self, engine: sgl.Engine, slowly: float) -> None:
        started = time.perf_counter()
        state = track.with_options(backend=engine, temperature=0, stream=True).run(**self.item)
        async for part in state.text_async_iter("intent"):
            self.intent += part
        async for part in state.text_async_iter("slots"):
            self.text, self.pieces = self.text + part, self.pieces + 1
            self.seconds = time.perf_counter() - started
            await asyncio.sleep(slowly)

    def cells(self) -> tuple[str | Text, ...]:
        asked = self.item["turns"][-1][1]
        return (
            asked,
            self.item["service"]["service_name"],
            Text(self.intent, "bold"),
            Text(self.text, "green"),
            f"{self.pieces} pieces\n{self.seconds:.1f} s",
        )


def picture(rows: list[Row]) -> Table:
    table = Table("the customer's last words", "service", "intent", "slots", "", expand=True, show_lines=True)
    for row in rows:
        table.add_row(*row.cells())
    return table


async def watch(rows: list[Row], slowly: float) -> None:
    with sgl.Engine() as engine, Live(console=Console(), get_renderable=lambda: picture(rows), refresh_per_second=15):
        await asyncio.gather(*(row.follow(engine, slowly) for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=4, help="how many programs at once")
    parser.add_argument("--slowly", type=float, default=0.02, help="seconds that the reader takes for each piece")
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    pairs = [(d, name) for d in sample["dialogues"] for name, point in d["expected"].items() if point["slots"]]
    rows = [Row({"turns": d["turns"], "service": services[name]}) for d, name in pairs[: args.streams]]
    asyncio.run(watch(rows, args.slowly))
    print(
        f"{sum(row.pieces for row in rows)} pieces in {len(rows)} streams, the longest took "
        f"{max(row.seconds for row in rows):.1f} s"
    )


if __name__ == "__main__":
    main()
