"""The README's first program: a mail in, JSON out, and a choice, on the bundled model."""

import sgl

FIELDS = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "date": {"type": "string"},
        "guests": {"type": "integer"},
    },
    "additionalProperties": False,
}


@sgl.function
def read_mail(s, mail):
    s += sgl.system("Extract these fields from the text as JSON. Leave out what the text does not say.\n- name\n- city\n- date\n- guests (integer)")
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", json_schema=FIELDS, max_tokens=80, temperature=0))


mail = "Hello, my name is Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests. Thank you!"
state = read_mail.run(mail)
print(state["booking"])
