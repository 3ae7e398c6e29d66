"""Programs without annotations, which pass: pyright infers their types, to mypy they are anything. Never run."""
# mypy: allow-untyped-defs, allow-untyped-calls
# pyright: basic

from __future__ import annotations

import sgl


@sgl.function
def reply(s, question, most=3):
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=most))


@sgl.function
async def later(s, question):
    s += question
    return await s.get("answer")


@sgl.function
def around(s, question):
    s += "Q: " + question
    inner = s.call(reply, question)
    s["answer"] = inner["answer"]
    with s.assistant():
        s += sgl.select("kind", ["a", "b"])


class Judge:
    @sgl.function
    def score(self, s, text):
        s += text


print(reply.run("why?")["answer"], reply.run("why?", temperature=0).text(), reply.run(question="why?", most=2))
print(around.run("why?"), later.run("why?"), Judge().score.run("text", seed=1))
