#!/usr/bin/env bash
# outlines-core raises for a `format` that it does not know, so one expects the same of any keyword that its regular
# expression cannot hold. It drops them instead: `pattern` next to `maxLength`, `minItems` next to `prefixItems`,
# `minimum`, `const` next to `enum`. The members of `allOf` are written one behind the other.
# Exits 1 when one of these behaves otherwise.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q outlines-core==0.2.14 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PY'
import json, re, sys
from importlib.metadata import version

import jsonschema
from outlines_core.json_schema import build_regex_from_schema

CASES = [  # a schema, a text, whether the schema allows it, whether the expression does
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, '"AB"', False, True),
    ({"type": "string", "pattern": "^[a-z]+$"}, '"AB"', False, False),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 2}, "[1]", False, True),
    ({"type": "integer", "minimum": 5}, "3", False, True),
    ({"const": "a", "enum": ["a", "b"]}, '"b"', False, True),
    ({"allOf": [{"type": "integer"}, {"enum": [1, 2]}]}, "1", True, False),
    ({"allOf": [{"type": "integer"}, {"enum": [1, 2]}]}, "11", False, True),
]

print("outlines-core", version("outlines-core"))
same = True
for schema, text, allowed, matched in CASES:
    valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    match = re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None
    print(f"{json.dumps(schema)}\n    {text}: the schema allows it: {valid}, the expression: {match}")
    same &= valid == allowed and match == matched
try:
    build_regex_from_schema(json.dumps({"type": "string", "format": "ipv4"}))
    same = False
except Exception as error:
    print("format ipv4:", type(error).__name__, error)
sys.exit(not same)
PY
