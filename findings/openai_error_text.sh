#!/usr/bin/env bash
# Guess: as in openai 2, the text of an HTTP error holds what the server answered, whatever its form.
# Seen: openai 3 keeps the body's error.message alone. A page of a proxy and {"detail": ...}, FastAPI's form, are missing from the
# text; both are in error.body.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
cat >"$folder/ask.py" <<'PY'
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import openai

BODIES = {"page": b"<html>bad gateway</html>", "detail": b'{"detail": "no such thing"}', "message": b'{"error": {"message": "said"}}'}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = BODIES[self.path.split("/")[1]]
        self.send_response(502)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("openai", openai.__version__)
found = {}
for name, body in BODIES.items():
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/{name}", api_key="none", max_retries=0)
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])
    except openai.APIStatusError as error:
        print(f"{name}: text {str(error)!r}, body {error.body!r}")
        found[name] = str(error), error.body
within = [word in found[name][0] for name, word in (("page", "bad gateway"), ("detail", "no such thing"), ("message", "said"))]
assert within == ([True] * 3 if sys.argv[1] == "2" else [False, False, True]), within
assert found["page"][1] is None or "bad gateway" in found["page"][1]
PY
for release in 2.54.0 3.57.0; do
  python3 -m venv --clear "$folder/venv"
  "$folder/venv/bin/pip" install -q --disable-pip-version-check "openai==$release"
  "$folder/venv/bin/python" "$folder/ask.py" "${release%%.*}"
done
