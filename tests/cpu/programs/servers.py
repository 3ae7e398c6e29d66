"""Programs that bring their own server, in the ways that public notebooks, tests and scripts do."""

import asyncio
import json

import httpx
import sglang as sgl
from sglang.srt.utils import kill_process_tree
from sglang.test.doc_patch import launch_server_cmd
from sglang.test.test_utils import DEFAULT_MODEL_NAME_FOR_TEST, DEFAULT_URL_FOR_TEST, popen_launch_server
from sglang.utils import print_highlight, terminate_process, wait_for_server


@sgl.function
def greet(s):
    s += sgl.user("Hello!")
    s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0))


def over_http(port, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0}
    with httpx.Client(base_url=f"http://localhost:{port}", timeout=120) as client:
        answer = client.post("/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]


def of_command():
    process, port = launch_server_cmd(
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.2-1B-Instruct --tp 2 --mem-fraction-static 0.7"
    )
    wait_for_server(f"http://localhost:{port}")
    answer = greet.run(backend=sgl.RuntimeEndpoint(f"http://localhost:{port}"))["answer"]
    assert over_http(port, "meta-llama/Llama-3.2-1B-Instruct") == answer
    terminate_process(process)
    assert process.poll() == 0
    return answer


def of_test():
    process = popen_launch_server(DEFAULT_MODEL_NAME_FOR_TEST, DEFAULT_URL_FOR_TEST, timeout=60)
    answer = greet.run(backend=sgl.RuntimeEndpoint(DEFAULT_URL_FOR_TEST))["answer"]
    kill_process_tree(process.pid)
    return answer


def of_runtime():
    runtime = sgl.Runtime(model_path="meta-llama/Llama-2-7b-chat-hf")
    sgl.set_default_backend(runtime)
    answer = greet.run()["answer"]
    assert greet.run(backend=sgl.RuntimeEndpoint(runtime.url))["answer"] == answer
    native = json.loads(runtime.generate("Hello", {"max_new_tokens": 6, "temperature": 0}))["text"]

    async def stream():
        return [delta async for delta in runtime.async_generate("Hello", {"max_new_tokens": 6, "temperature": 0})]

    assert "".join(asyncio.run(stream())) == native
    runtime.shutdown()
    return answer


def of_engine():
    with sgl.Engine(model_path="meta-llama/Llama-2-7b-chat-hf") as engine:
        return greet.run(backend=engine)["answer"]


print_highlight(json.dumps([of_command(), of_test(), of_runtime(), of_engine()]))
