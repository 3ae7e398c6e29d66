#!/usr/bin/env bash
# Guess: a server that does not know the field "thread" of anthropic's tool runner can refuse it like any unknown field, with a
# 400 whose message names it, and the runner goes on without it.
# Seen: the runner ends with that 400. It goes on, with the same messages and no thread, only if error.details of the body
# has the error_code thread_unsupported_request.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check anthropic==2.14.0
"$folder/venv/bin/python" - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import anthropic

seen, details = [], {}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen.append(body.get("thread"))
        answer, status = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
                          "content": [{"type": "text", "text": "Hi"}], "usage": {"input_tokens": 1, "output_tokens": 1}}, 200
        if "thread" in body:
            error = {"type": "invalid_request_error", "message": "thread: no such field", **details}
            answer, status = {"type": "error", "error": error}, 400
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none", max_retries=0)


@anthropic.beta_tool
def now() -> str:
    """The time."""
    return "noon"


def run():
    seen.clear()
    runner = client.beta.messages.tool_runner(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hello"}], tools=[now])
    try:
        return [message.content[0].text for message in runner]
    except anthropic.BadRequestError as error:
        return f"BadRequestError {error.status_code}"


print("anthropic", anthropic.__version__)
plain = run(), [*seen]
print("a plain 400:", *plain)
details["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
coded = run(), [*seen]
print("with the error code:", *coded)
assert plain == ("BadRequestError 400", [{"type": "create"}])
assert coded == (["Hi"], [{"type": "create"}, None])
PY
