#!/usr/bin/env bash
# pydantic's JSON Schema of a type is not what the type reads, also where JSON Schema could say it: the tag of a
# discriminated union with a default is not required, and no key of dict[IntEnum, ...] is allowed at all.
# Its check of float multiples forgives an absolute 1e-9, so it refuses true multiples from some millions on.
# Exits 1 when one of these behaves otherwise.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pydantic==2.14.3 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PY'
import enum, json, sys
from typing import Annotated, Literal, Union
import jsonschema, pydantic
from pydantic import BaseModel, Field, TypeAdapter

class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int

class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str

class Floor(enum.IntEnum):
    GROUND = 0

CASES = [  # the type, a text, whether the schema of pydantic allows it, whether pydantic reads it
    (Annotated[Union[Cat, Dog], Field(discriminator="kind")], '{"lives": 9}', True, False),
    (dict[Floor, int], '{"0": 1}', False, True),
    (Annotated[float, Field(multiple_of=0.1)], "4836516110.9", None, False),
]

def allowed(kind, text):
    return jsonschema.Draft202012Validator(TypeAdapter(kind).json_schema()).is_valid(json.loads(text))

def is_read(kind, text):
    try:
        TypeAdapter(kind).validate_json(text)
    except ValueError:
        return False
    return True

print("pydantic", pydantic.VERSION)
same = True
for kind, text, in_schema, in_type in CASES:
    schema, reads = allowed(kind, text), is_read(kind, text)
    print(f"{text:16} schema allows: {schema}, type reads: {reads}")
    same &= reads == in_type and (in_schema is None or schema == in_schema)
sys.exit(not same)
PY
