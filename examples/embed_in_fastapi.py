"""A web service of your own with the engine inside: one process, your routes, no separate model server.

    pip install 'sgl[server]'
    python examples/embed_in_fastapi.py                # serves at http://127.0.0.1:8000, see /docs
    python examples/embed_in_fastapi.py --self-test    # starts it, calls it, breaks off a stream, ends it

The engine opens and closes with the app. Requests are programs in the app's event loop, batched by the engine. When a
client leaves, its run is cancelled and its memory freed. (`sgl serve` is a ready-made server of OpenAI's protocol.)
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import sgl


class Booking(BaseModel):
    name: str | None = None
    city: str | None = None
    date: str | None = None
    guests: int | None = None


class Mail(BaseModel):
    text: str


@sgl.function
async def read_mail(s: sgl.AsyncState, mail: str) -> Booking:
    s += sgl.system(sgl.fields(Booking))
    s += sgl.user(mail)
    s += sgl.assistant(sgl.gen("booking", Booking, max_tokens=80))
    return await s.get("booking")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with sgl.Engine() as app.state.engine:
        yield


app = FastAPI(title="Bookings", lifespan=lifespan)


@app.post("/bookings")
async def booking(mail: Mail) -> Booking:
    """The booking that a mail asks for."""
    state = await read_mail.arun(mail.text, backend=app.state.engine, temperature=0, timeout=30)
    return state.ret_value


@app.post("/bookings/stream")
async def stream(mail: Mail) -> StreamingResponse:
    """The same as JSON text, piece by piece."""
    state = await read_mail.arun(mail.text, backend=app.state.engine, temperature=0, stream=True)
    return StreamingResponse(state.text_async_iter("booking"), media_type="application/json")


@app.get("/stats")
async def stats() -> dict[str, int]:
    found = app.state.engine.stats()
    return {"running": found.running, "generated_tokens": found.generated_tokens}


async def self_test() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        mails = [
            f"Hi, Anna Weber here, a table in {city} on Friday for {n} guests, please."
            for n, city in enumerate(("Rome", "Oslo", "Lisbon"), 2)
        ]
        mails.append("Do you have parking?")
        for answer in await asyncio.gather(*(client.post("/bookings", json={"text": mail}) for mail in mails)):
            print("booking", answer.json())
        async with client.stream("POST", "/bookings/stream", json={"text": mails[0]}) as answer:
            print("stream ", " ".join([repr(piece) async for piece in answer.aiter_text()]))
        async with client.stream("POST", "/bookings/stream", json={"text": mails[1]}) as answer:
            await anext(answer.aiter_text())  # and leaves
        for _ in range(100):
            left = (await client.get("/stats")).json()
            if not left["running"]:
                break
            await asyncio.sleep(0.05)
        print(f"left    {left}")
    server.should_exit = True
    await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--self-test", action="store_true", help="call it and end")
    args = parser.parse_args()
    asyncio.run(self_test()) if args.self_test else uvicorn.run(app, port=args.port)


if __name__ == "__main__":
    main()
