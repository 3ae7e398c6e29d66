"""Multi-document question answering: a fork for each document says whether it knows, the surest one answers.

    python examples/documents_qa.py                        # 20 questions with known answers
    python examples/documents_qa.py "Who is the tenant?"   # your own, about the documents below

The question comes before the documents, so the forks share it; all of them are judged at once. A fork is not asked for
an
answer first (a small model always finds one) but whether it would write the field or an empty object:
P('{"tenant": "') against P('{}'). "Who is the tenant?" becomes the field `tenant`, since the bundled model reads fields
better than questions. A larger model can take the question as it is and quote the sentence that answers it.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import sgl

DOCUMENTS = {
    "invoice": "Invoice 2024-117. Supplier: Brandt Office Supply. Your order of ten desks was delivered on May 2nd. "
    "The total is $4,380, the due date is June 1st. Please pay to the account DE44 5001 0517. Contact: "
    "billing@brandt.example.",
    "lease": "Lease for a flat. The landlord is Mia Rossi, the tenant is Omar Haddad. The flat lies at 14 Castle "
    "Street in Prague. The monthly rent is $950, the deposit is $1,900. The lease begins on July 1st. Keys: two.",
    "job": "We are hiring! Position: data analyst. Employer: Nordlys Energy, Oslo. The salary is $62,000 a year. "
    "Requirements: SQL and Norwegian. Apply until March 15th. The recruiter is Lars Berg, phone +47 22 555 018.",
    "concert": "You are invited to the summer concert. Venue: Harbour Hall in Lisbon. The conductor is Rita Lopes. "
    "Doors open at 7 pm. Dress code: casual. Tickets: $25. Parking is in Dock Road.",
    "parcel": "Your parcel is on its way. Tracking number: PX-88213. Carrier: Rapido Express. Weight: 3.2 kg. It "
    "was shipped from Madrid. Expected delivery: Tuesday. The driver is Carlos Ruiz.",
    "clinic": "Dear Mr. Weber, your appointment with Dr. Jana Novak is on October 9th at 8:30. Treatment: dental "
    "cleaning. Insurance number: 771-204-9. Please come to room 212. Reason for visit: tooth ache.",
}
QUESTIONS = {
    "Who is the landlord?": "Mia Rossi",
    "What is the monthly rent?": "$950",
    "What is the tracking number?": "PX-88213",
    "Who is the conductor?": "Rita Lopes",
    "What is the due date?": "June 1st",
    "Who is the supplier?": "Brandt Office Supply",
    "What is the salary?": "$62,000",
    "What is the weight?": "3.2 kg",
    "What is the dress code?": "casual",
    "Who is the recruiter?": "Lars Berg",
    "What is the insurance number?": "771-204-9",
    "What is the treatment?": "dental cleaning",
    "Who is the tenant?": "Omar Haddad",
    "What is the venue?": "Harbour Hall",
    "Who is the carrier?": "Rapido Express",
    "What is the position?": "data analyst",
    "What is the deposit?": "$1,900",
    "Who is the driver?": "Carlos Ruiz",
    "What is the total?": "$4,380",
    "Who is the employer?": "Nordlys Energy",
}


def asked(question: str) -> str:
    """The field that a question asks for: "Who is the tenant?" asks for `tenant`."""
    found = re.fullmatch(
        r"(?:What|Who|Which|When|Where) (?:is|was|are) (?:the )?(.+?)\??", question.strip(), re.IGNORECASE
    )
    return (found[1] if found else question.rstrip("?")).lower().replace(" ", "_")


@sgl.function
def answer(s: sgl.State, question: str) -> dict[str, Any]:
    field = asked(question)
    begun = f'{{"{field}": "'
    s += sgl.system(sgl.fields({"type": "object", "properties": {field: {"type": "string"}}}))
    forks = s.fork(len(DOCUMENTS))
    for branch, document in zip(forks, DOCUMENTS.values(), strict=True):
        branch += sgl.user(document) + sgl.assistant_begin()
        branch += sgl.select("stated", ["{}", begun])
    sure = [branch.probs("stated")[begun] for branch in forks]
    best = sure.index(max(sure))
    if forks[best]["stated"] == "{}":
        return {"document": None, "answer": None, "sure": sure[best]}
    forks[best] += sgl.gen("answer", max_tokens=24, stop='"')
    return {"document": list(DOCUMENTS)[best], "answer": forks[best]["answer"], "sure": sure[best]}


def main() -> None:
    questions = sys.argv[1:] or list(QUESTIONS)
    with sgl.Engine() as engine:
        before, started = engine.stats(), time.perf_counter()
        states = answer.run_batch([{"question": question} for question in questions], backend=engine, temperature=0)
        seconds, spent = time.perf_counter() - started, engine.stats() - before
    for question, state in zip(questions, states, strict=True):
        found = state.ret_value
        wanted = QUESTIONS.get(question, found["answer"])
        verdict = "" if found["answer"] == wanted else f"  WRONG: {wanted}"
        print(f"{question:31} {found['document'] or 'no document':12} {found['sure']:4.0%}  {found['answer']}{verdict}")
    known = [
        (state, QUESTIONS[question]) for question, state in zip(questions, states, strict=True) if question in QUESTIONS
    ]
    if known:
        print(
            f"\n{sum(state.ret_value['answer'] == wanted for state, wanted in known)} of {len(known)} answers are "
            "right."
        )
    print(
        f"{spent.computed_tokens:,} tokens computed, {spent.cached_tokens:,} taken from the cache, in {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
