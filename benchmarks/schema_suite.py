"""The public JSON Schema test suite against the grammars: what is right, refused, too narrow and unsound, and where.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite /tmp/suite
    python benchmarks/schema_suite.py /tmp/suite

The source distribution of `jsonschema` on PyPI has the suite in its folder `json`.

A test is right where the schema compiles and the text of its value, as `json.dumps` writes it, is accepted exactly if
the suite calls it valid. Unsound is an invalid value that is accepted: the one thing that must not be.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgl.grammars import GrammarError, Vocabulary, compile_json_schema

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
VOCABULARY = Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b"<eos>"], [256])


def groups(folder: Path) -> Iterator[tuple[str, str, bool, dict[str, Any]]]:
    """(draft, file, whether it is required, group of tests) of all drafts."""
    for draft in DRAFTS:
        for path in sorted((folder / "tests" / draft).rglob("*.json")):
            name = str(path.relative_to(folder / "tests" / draft))
            for group in json.loads(path.read_text()):
                yield draft, name, "optional" not in name, group


def remotes(folder: Path) -> dict[str, Any]:
    """The suite's other documents by their addresses."""
    root = folder / "remotes"
    found = {f"http://localhost:1234/{p.relative_to(root)}": json.loads(p.read_text()) for p in root.rglob("*.json")}
    return found | _metaschemas()


def _metaschemas() -> dict[str, Any]:
    """The drafts' own schemas, where the package that `jsonschema` brings is installed."""
    try:
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return {}
    return {uri.rstrip("#"): REGISTRY.contents(uri) for uri in REGISTRY}


def verdicts(draft: str, group: dict[str, Any], others: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(verdict, why) of each test of a group."""
    schema = group["schema"]
    options: dict[str, Any] = {"order": "any"}
    if any(keyword in json.dumps(schema) for keyword in ('"$ref"', '"$dynamicRef"', '"$schema"')):
        options["resources"] = others
    if isinstance(schema, dict):
        schema = {"$schema": DRAFTS[draft], **schema}
    try:
        grammar = compile_json_schema(schema, VOCABULARY, **options)
    except GrammarError as error:
        yield from (_refused(error, test) for test in group["tests"])
        return
    except Exception as error:
        yield from (("broken", repr(error)) for _ in group["tests"])
        return
    for test in group["tests"]:
        yield _verdict(grammar, test)


def _refused(error: GrammarError, test: dict[str, Any]) -> tuple[str, str]:
    """A schema that allows nothing is reported when it is compiled."""
    if "allows no value at all" in str(error):
        return ("narrow", str(error)) if test["valid"] else ("right", "")
    return "refused", str(error)


def _verdict(grammar: Any, test: dict[str, Any]) -> tuple[str, str]:
    matcher = grammar.matcher()
    text = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        passes = all(matcher.accept(byte) for byte in text) and matcher.can_end
    except GrammarError as error:
        return "limit", str(error)
    if passes == test["valid"]:
        return "right", ""
    return ("unsound", "accepted") if passes else ("narrow", "not accepted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", action="append", default=[], help="a verdict whose tests are listed")
    arguments = parser.parse_args()
    others = remotes(arguments.folder)
    found: dict[str, Counter[str]] = {"required": Counter(), "optional": Counter()}
    for draft, name, required, group in groups(arguments.folder):
        for test, (verdict, why) in zip(group["tests"], verdicts(draft, group, others), strict=True):
            found["required" if required else "optional"][verdict] += 1
            if verdict in arguments.show:
                print(f"{verdict} {draft}/{name}: {group['description']}: {test['description']}: {why}")
    for kind, counts in found.items():
        print(kind, sum(counts.values()), dict(counts.most_common()))


if __name__ == "__main__":
    main()
