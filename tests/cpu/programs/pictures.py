"""A question about a picture: a model that reads texts only must say so."""

import sglang as sgl

PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00IEND\xaeB`\x82"
)


@sgl.function
def look(s, picture):
    s += sgl.user(sgl.image(picture) + "What is this?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))


print(look.run(PIXEL)["answer"])
