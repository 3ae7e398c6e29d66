"""The prose of the guides: the length of sentences, and words that it may not use. `house.py` reports what this finds.

Run alone it checks pages by name: `python tests/house_prose.py docs/cpu.md`; without names, those in GUIDES.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_SENTENCE = 30  # words
LONGEST_AVERAGE = 20  # words, over the sentences of a page
GUIDES = (  # the pages that are checked; a guide joins when it passes
    "README.md",
    "CONTRIBUTING.md",
    "docs/reading.md",
    "docs/faq.md",
    "docs/parallel.md",
    "docs/speculation.md",
    "docs/gpu.md",
    "docs/adapters.md",
    "docs/benchmarks.md",
    "docs/status.md",
    "docs/cpu.md",
    "docs/server.md",
    "docs/loading.md",
    "docs/quantize.md",
    "docs/internals.md",
    "docs/glossary.md",
    "docs/cache.md",
    "docs/scheduling.md",
    "docs/process.md",
    "docs/compile.md",
    "docs/watching.md",
    "docs/replay.md",
    "docs/tokenizers.md",
    "docs/server_tools.md",
    "docs/life_of_a_request.md",
    "docs/life_of_a_weight.md",
    "docs/index.md",
    "docs/install.md",
    "docs/language.md",
    "docs/grammars.md",
    "docs/tools.md",
    "docs/check.md",
    "docs/report.md",
    "docs/commands.md",
    "docs/apis.md",
    "docs/compatibility.md",
    "docs/comparison.md",
    "docs/extract.md",
    "docs/extending.md",
    "docs/dialects.md",
)

# A code span may hold any of these; a longer phrase in ALLOWED may, too.
FORBIDDEN = {
    r"(?:the|a|by) law|laws": "reference",
    r"beside": "next to, in the same batch, in parallel, as well as",
    r"told|tells? of": "reported, raises, describes",
    r"nobody|whoever": "name the subject",
    r"lies?|lying": "is stored, is in",
    r"stands?": "is",
    r"behind": "after",
    r"of (?:its|their) own": "its own, their own, separate",
    r"twins?": "Python implementation",
    r"lone": "single, batch of one",
    r"kin": "variants",
    r"leash": "parent death",
    r"pulse": "heartbeat",
    r"newcomers?": "new requests",
    r"guess(?:es|ed|ing)?": "draft tokens, drafts",
    r"one row": "a batch of one",
    r"few rows": "a small batch",
    r"few bits": "quantized",
    r"over ranks": "tensor parallel, across ranks",
    r"mailbox": "p2p",
    r"cards": "GPUs",
}
ALLOWED = (
    "behind a proxy",
    "behind a reverse proxy",
    "behind nginx",
    "stands for",
    "stand for",
    "the law of Zipf",
)

FENCE = re.compile(r"^[ >]*(`{3,}|~{3,}).*?^[ >]*\1[`~]* *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->|\A---\n.*?\n---\n", re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)]*\)|\[[^\]]*\])")
TAG = re.compile(r"</?[a-zA-Z][^>]*>")
BREAK = re.compile(
    r"^ *(?:\||#{1,6} |[-*_] ?[-*_] ?[-*_]|!!! )"
)  # a table's line, a heading, a rule, an admonition's title
ITEM = re.compile(r"^[ >]*(?:[-*+] |\d+[.)] )")
END = re.compile(r"(?<!\.)[.!?][\"')*_\]]*(?=\s|$)")
SHORT = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|approx|Fig|No)|^\d+)\.$")
WORD = re.compile(r"\w|\ue000")
HIDDEN = re.compile(r"\ue000(\d+)\ue001")


def paragraphs(markdown: str) -> Iterator[tuple[str, list[str]]]:
    """Each paragraph and list item as one line, with its code spans cut out: a
    mark with its number is in their place.
    """
    text = FENCE.sub("\n\n", COMMENT.sub("", markdown))
    spans: list[str] = []

    def hide(match: re.Match[str]) -> str:
        spans.append(" ".join(match[0].split()))
        return f"\ue000{len(spans) - 1}\ue001"

    text = TAG.sub(" ", LINK.sub(r"\1", CODE.sub(hide, text)))
    gathered: list[str] = []
    for line in [*text.splitlines(), ""]:
        ends, item = not line.strip(" >") or BREAK.match(line), ITEM.match(line)
        if (ends or item) and gathered:
            yield " ".join(gathered), spans
            gathered = []
        if not ends:
            gathered.append((line[item.end() :] if item else line).strip(" >"))


def sentences(paragraph: str) -> Iterator[str]:
    start = 0
    for match in END.finditer(paragraph):
        if not SHORT.search(paragraph[start : match.end()].rstrip()):
            yield paragraph[start : match.end()].strip()
            start = match.end()
    if paragraph[start:].strip():
        yield paragraph[start:].strip()


def count(sentence: str) -> int:
    """Words of a sentence; a code span is one."""
    return sum(1 for word in sentence.split() if WORD.search(word))


def shown(sentence: str, spans: list[str]) -> str:
    return HIDDEN.sub(lambda match: spans[int(match[1])], sentence)


def forbidden(sentence: str) -> Iterator[str]:
    """The words of a sentence that prose may not use, each with what to write."""
    for phrase in ALLOWED:
        sentence = re.sub(rf"\b{phrase}\b", "", sentence, flags=re.IGNORECASE)
    for pattern, better in FORBIDDEN.items():
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", sentence, re.IGNORECASE):
            yield f"“{match[0]}” (better: {better})"


def problems(page: str, markdown: str) -> Iterator[str]:
    """What the limits have against a page, with each sentence that is meant."""
    lengths = []
    for paragraph, spans in paragraphs(markdown):
        for sentence in sentences(paragraph):
            if not (words := count(sentence)):
                continue
            lengths.append(words)
            whole = shown(sentence, spans)
            if words > LONGEST_SENTENCE:
                yield f"{page}: a sentence of {words} words, at most {LONGEST_SENTENCE}: {whole}"
            yield from (f"{page}: {word}: {whole}" for word in forbidden(sentence))
    if lengths and (average := statistics.mean(lengths)) > LONGEST_AVERAGE:
        yield f"{page}: sentences have {average:.1f} words on average, at most {LONGEST_AVERAGE}"
    # tables are no sentences, but their words count
    for line in COMMENT.sub("", FENCE.sub("", markdown)).splitlines():
        if line.lstrip().startswith(("|", "#")):
            plain = LINK.sub(r"\1", CODE.sub("\ue000", line))
            yield from (f"{page}: {word}: {line.strip()[:200]}" for word in forbidden(plain))


def prose(root: Path, pages: tuple[str, ...] = GUIDES) -> Iterator[str]:
    for page in pages:
        if (root / page).exists():
            yield from problems(page, (root / page).read_text(encoding="utf-8"))
        else:
            yield f"{page} is not there; tests/house_prose.py checks it"


if __name__ == "__main__":
    found = list(prose(ROOT, tuple(sys.argv[1:]) or GUIDES))
    print("\n".join(found) or "no long sentences, no words that prose may not use")
    sys.exit(bool(found))
