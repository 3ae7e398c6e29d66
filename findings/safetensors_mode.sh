#!/bin/sh
# Guess: a file that safetensors' save_file writes has the mode that the umask gives new files, as open(path, "wb") has.
# Found: safetensors 0.8.0 leaves it at 0600 whatever the umask says, so a checkpoint in a shared folder cannot be read by others.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q safetensors==0.8.0 numpy==2.3.5
"$folder/venv/bin/python" - "$folder" <<'PY'
import os, sys
import numpy, safetensors
from safetensors.numpy import save_file
os.umask(0o022)
plain, own = sys.argv[1] + "/plain", sys.argv[1] + "/own.safetensors"
open(plain, "wb").close()
save_file({"a": numpy.zeros(2, numpy.float32)}, own)
modes = [oct(os.stat(file).st_mode & 0o777) for file in (plain, own)]
print("safetensors", safetensors.__version__, "umask 022: open() gives", modes[0], "and save_file gives", modes[1])
sys.exit(modes != ["0o644", "0o600"])
PY
