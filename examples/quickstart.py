"""The README's first program: mails in, objects out, None where a mail says nothing, on the bundled model."""

from dataclasses import dataclass

import sgl


@dataclass
class Booking:
    name: str | None = None
    city: str | None = None
    date: str | None = None
    guests: int | None = None


@sgl.function
def read_mail(s: sgl.State, mail: str):
    s += sgl.system(sgl.fields(Booking))
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", Booking, max_tokens=80, temperature=0))


for mail in ("I am Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests.", "Do you have parking?"):
    state = read_mail.run(mail)
    print(state["booking"])
    print(state.get("booking"))
