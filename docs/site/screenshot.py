"""Take a picture of a page in a headless Chromium, at the width at which the documentation shows it.

python examples/report_a_run.py run.html
python docs/site/screenshot.py run.html docs/report.png --fragment "#0/1"
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/cpu"))
from chromium import Browser, browser, find_chromium

WIDTH = 900  # pixels of style sheets; pages show pictures at about 800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument(
        "--height", type=int, default=900, help="in the same pixels; each of them is two of the picture's"
    )
    parser.add_argument("--fragment", default="", help="#run/branch/piece, as the page's own links have it")
    parser.add_argument("--point-at", help="a selector: the mouse rests on the last element that fits")
    options = parser.parse_args()
    program = find_chromium() or sys.exit("no Chromium here: install one (Debian: apt-get install chromium)")
    with browser(program) as page:
        take(page, options)


def take(page: Browser, options: argparse.Namespace) -> None:
    page.show(WIDTH, options.height, scale=2)
    page.open(options.page, options.fragment)
    if options.point_at:
        x, y = page.run(
            "(b => [b.x + b.width / 2, b.y + b.height / "
            f"2])([...document.querySelectorAll({options.point_at!r})].at(-1).getBoundingClientRect())"
        )
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.screenshot(options.picture)


if __name__ == "__main__":
    main()
