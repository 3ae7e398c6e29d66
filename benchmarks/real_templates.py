"""Tables over the chat templates that llama.cpp publishes: prompts, what is read of answers, what is taken back as
history.

    python benchmarks/real_templates.py            # prints them
    python benchmarks/real_templates.py --write    # and writes docs/dialects.md

The prompts' table compares with transformers; the other two need nothing else. See real_templates_prompts.py and
real_templates_calls.py for what is rendered and who is the oracle.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- made by benchmarks/real_templates.py -->", "<!-- end -->"
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "dialects.md"


def calls_section(read: Sequence[Any], history: Sequence[Any]) -> str:
    """The part of the docs about calls, in Markdown."""
    lines = [
        "| table | templates wholly right | cases right |",
        "|---|---|---|",
        _counts("text, thoughts and calls are read as the template wrote them", read),
        _counts("what the template writes is allowed, and what is allowed is read and shown again as history", history),
        "",
        "What is not right, and why:",
        "",
        "| template | cases right | what differs |",
        "|---|---|---|",
        *(
            f"| {row.template} | {row.right} of {row.of} | {WHY[row.template]} |"
            for row in (*read, *history)
            if row.right < row.of
        ),
    ]
    return "\n".join(lines)


def _counts(title: str, rows: Sequence[Any]) -> str:
    whole = sum(row.right == row.of for row in rows)
    return f"| {title} | {whole} of {len(rows)} | {sum(row.right for row in rows)} of {sum(row.of for row in rows)} |"


_PYTHON = "lists and objects are written as in Python (`['a']`): they are read so, but the grammar writes JSON there"
WHY = {
    "Apriel-1.6-15b-Thinker-fixed": "in history it adds the ids of calls, which it does not ask the model to write",
    "unsloth-Apriel-1.5": "in history it adds the ids of calls, which it does not ask the model to write",
    "ByteDance-Seed-OSS": _PYTHON,
    "LFM2.5-8B-A1B": _PYTHON,
    "openbmb-MiniCPM5-1B": _PYTHON,
    "CohereForAI-c4ai-command-r-plus-tool_use": "it writes arguments over many lines, the grammar on one",
    "openai-gpt-oss-120b": "it writes the recipient before the channel, the dialect after it; both are allowed and "
    "read",
    "muse-glimmer": "every message has its recipient in the header (`to=user`, `to=self`), calls have it there and "
    "in the call: not known",
}


def write(section: str) -> None:
    """Put the section between its marks in the docs."""
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n{section}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    logging.disable(logging.WARNING)
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
    import real_templates_calls as calls
    from registry_files import templates

    paths = templates()
    tables = {"read": calls.read_rows(paths), "history": calls.history_rows(paths), **_prompts(paths)}
    for title, rows in tables.items():
        print(title)
        for row in rows:
            print(f"{row.right:5} of {row.of}  {row.template}  {getattr(row, 'reason', '')}")
    section = calls_section(tables["read"], tables["history"])
    print(section)
    if "--write" in sys.argv:
        write(section)


def _prompts(paths: Sequence[Path]) -> dict[str, Any]:
    """The first table, where its module is there."""
    import real_templates_prompts as prompts

    return {"prompts": prompts.rows(paths)}


if __name__ == "__main__":
    main()
