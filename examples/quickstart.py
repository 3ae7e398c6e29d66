"""The README's first program: a mail in, an object out, on the bundled model."""

from dataclasses import dataclass

import sgl


@dataclass
class Booking:
    name: str
    city: str
    date: str
    guests: int


@sgl.function
def read_mail(s, mail):
    s += sgl.system("Extract these fields from the text as JSON.\n- name\n- city\n- date\n- guests (integer)")
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", Booking, max_tokens=80, temperature=0))


state = read_mail.run("Hello, I am Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests.")
print(state["booking"])
print(state.get("booking"))
