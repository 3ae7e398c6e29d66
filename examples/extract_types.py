"""Documents in, Python objects out: `gen("booking", Booking)`, many documents at once, errors one by one.

python examples/extract_types.py              # the mails below
python examples/extract_types.py MAIL.txt...  # your own
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import sgl

MAILS = {
    "anna": "Hello, my name is Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests. Thank you!",
    "omar": "Hi, Omar Haddad here, please book a table in Cairo on Friday for 5 guests.",
    "group": "Good morning, this is Mia Rossi. We need rooms in Rome on June 12th for 45 guests.",
    "hasty": "Any room left in Porto for 3 guests?",
    "car": "Do you have parking?",
    "digest": "The weekly travel digest. " + "A lovely hotel, a quiet street, a short walk to the sea. " * 400,
    "li": "My name is Li Chen, I am looking for a room in Oslo on May 4th for 2 guests.",
}


@dataclass
class Booking:
    name: str | None = (
        None  # None where a mail does not say it; a field without a default is always written, known or not
    )
    city: str | None = None
    date: str | None = None
    guests: int | None = None

    def __post_init__(self) -> None:
        if self.guests and self.guests > 20:
            raise ValueError(f"{self.guests} guests are a group: ask the manager")


@sgl.function
def read_mail(s: sgl.State, mail: str) -> Booking:
    s += sgl.system(sgl.fields(Booking))
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", Booking, max_tokens=80))
    return s.get("booking")


def main() -> None:
    mails = {path: Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]} or MAILS
    items = [{"mail": mail} for mail in mails.values()]
    results = read_mail.run_batch(items, temperature=0, progress_bar=True, return_exceptions=True)
    for name, result in zip(mails, results, strict=True):
        print(f"{name:8} {f'FAILED: {result}' if isinstance(result, Exception) else result.ret_value}")
    states = [result for result in results if not isinstance(result, Exception)]
    print(f"\n{len(states)} of {len(results)} read; {sgl.Usage.total(state.usage() for state in states)}")


if __name__ == "__main__":
    main()
