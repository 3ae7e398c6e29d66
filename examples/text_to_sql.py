"""Text to SQL: requests in English become queries that are always valid, because a grammar made from the table enforces
it.

    python examples/text_to_sql.py                            # the requests below, compared with hand-written SQL
    python examples/text_to_sql.py "a suite in Rome, please"  # your own

Prompt and grammar are made from one JSON Schema: the table's columns, their types and the values of the text columns.
sqlite parses and runs what comes out. The bundled model has never seen SQL, but it writes JSON well: the condition is a
JSON object that the row must contain (what PostgreSQL calls `@>`). For a model that knows SQL, write a grammar of
comparisons, AND and ORDER BY.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import Any

import sgl

COLUMNS = {"city": "TEXT", "room": "TEXT", "guests": "INTEGER", "view": "TEXT"}
ROOMS = [
    ("Alba", "Lisbon", "single room", 1, "garden"),
    ("Alba", "Lisbon", "double room", 2, "sea"),
    ("Belem", "Lisbon", "suite", 4, "sea"),
    ("Nordlys", "Oslo", "double room", 2, "harbour"),
    ("Nordlys", "Oslo", "cabin", 6, "garden"),
    ("Fjord", "Oslo", "single room", 1, "harbour"),
    ("Trevi", "Rome", "suite", 2, "garden"),
    ("Trevi", "Rome", "apartment", 4, "street"),
    ("Roma", "Rome", "single room", 1, "street"),
    ("Nile", "Cairo", "double room", 3, "river"),
    ("Nile", "Cairo", "suite", 5, "river"),
    ("Delta", "Cairo", "apartment", 4, "garden"),
]
REQUESTS = {
    "I need a double room in Lisbon.": "city = 'Lisbon' AND room = 'double room'",
    "We are 4 guests and look for an apartment in Cairo.": "city = 'Cairo' AND room = 'apartment' AND guests = 4",
    "What do you have in Oslo?": "city = 'Oslo'",
    "Do you have a suite with a view of the river?": "room = 'suite' AND view = 'river'",
    "A room for 6 guests, please.": "guests = 6",
    "Is there a single room in Rome?": "city = 'Rome' AND room = 'single room'",
    "We would like a place in Rome for 4 guests.": "city = 'Rome' AND guests = 4",
    "Hi, I am looking for something with a view of the harbour.": "view = 'harbour'",
    "Which suites are there?": "room = 'suite'",
    "A cabin in Oslo, if possible with a view of the garden.": "city = 'Oslo' AND room = 'cabin' AND view = 'garden'",
    "Please book a double room in Cairo for 3 guests.": "city = 'Cairo' AND room = 'double room' AND guests = 3",
    "Anything in Lisbon with a view of the sea?": "city = 'Lisbon' AND view = 'sea'",
    "We come to Lisbon with 4 people and want a suite.": "city = 'Lisbon' AND room = 'suite' AND guests = 4",
    "Any apartment is fine.": "room = 'apartment'",
    "I want a single room with a view of the garden.": "room = 'single room' AND view = 'garden'",
    "Two nights in Rome with a view of the street, it is cheaper.": "city = 'Rome' AND view = 'street'",
}


def open_table() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    as_json = ", ".join(f"'{name}', {name}" for name in COLUMNS)
    database.execute(f"CREATE TABLE rooms (hotel TEXT, {columns}, facts TEXT AS (json_object({as_json})))")
    database.executemany("INSERT INTO rooms VALUES (?, ?, ?, ?, ?)", ROOMS)
    return database


def columns_of(database: sqlite3.Connection) -> dict[str, Any]:
    """The columns as properties of a JSON Schema: a text column with the values that occur in it."""

    def column(name: str, kind: str) -> dict[str, Any]:
        if kind == "INTEGER":
            return {"type": "integer"}
        return {"enum": [value for (value,) in database.execute(f"SELECT DISTINCT {name} FROM rooms ORDER BY 1")]}

    return {name: column(name, kind) for name, kind in COLUMNS.items()}


def sql_grammar(columns: dict[str, Any]) -> str:
    """EBNF of the queries: each column at most once, in order, with a value that the column can have."""
    rules, names = [], list(columns)
    for name, column in columns.items():
        value = " | ".join(json.dumps(json.dumps(text)) for text in column.get("enum", ())) or "[1-9] [0-9]?"
        rules.append(f'{name} ::= "\\"{name}\\": " ({value})')
    ways = [" ".join([first, *(f'(", " {later})?' for later in names[i + 1 :])]) for i, first in enumerate(names)]
    root = f'root ::= "SELECT * FROM rooms WHERE json_patch(facts, \'{{" ({" | ".join(ways)}) "}}\') = facts"'
    return "\n".join([root, *rules])


@sgl.function
def translate(s: sgl.State, request: str, columns: dict[str, Any]):
    s += sgl.system(sgl.fields({"type": "object", "properties": columns}))
    s += sgl.user(request)
    s += sgl.assistant(sgl.gen("query", ebnf=sql_grammar(columns), max_tokens=90))


def main() -> None:
    database = open_table()
    requests = sys.argv[1:] or list(REQUESTS)
    columns = columns_of(database)  # bodies run in other threads, where this sqlite connection may not be used
    items = [{"request": request, "columns": columns} for request in requests]
    states = translate.run_batch(items, temperature=0)
    right, known = 0, sum(request in REQUESTS for request in requests)
    for request, state in zip(requests, states, strict=True):
        rows = database.execute(state["query"]).fetchall()  # sqlite's own parser: an invalid query would raise here
        print(f"\n{request}\n  {state['query']}\n  {', '.join(f'{row[0]}: {row[2]}' for row in rows) or 'no room'}")
        if request in REQUESTS:
            good = rows == database.execute(f"SELECT * FROM rooms WHERE {REQUESTS[request]}").fetchall()
            right += good
            print("  right" if good else f"  WRONG: {REQUESTS[request]}")
    print(
        f"\nsqlite ran {len(states)} of {len(states)} queries"
        + (f"; {right} of {known} find the right rooms" if known else "")
        + "."
    )
    print(sgl.Usage.total(state.usage() for state in states))


if __name__ == "__main__":
    main()
