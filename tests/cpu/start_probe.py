"""Starts an engine in a process of its own, answers once, and prints what that did as a JSON object.

    python start_probe.py [MODEL]

torch is imported first: what it does is not counted. Then all of ours that an engine needs, so that `read` are the
bytes of the model's files, not of modules.
"""

import collections
import json
import os
import sys
import threading

import torch  # noqa: F401

before = set(sys.modules)
opened: collections.Counter[str] = collections.Counter()
processes: list[str] = []
threads: list[str] = []
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "socket.connect"}
CODE = (".py", ".pyc", ".so", ".pyd")


def watch(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and not str(args[0]).endswith(CODE):
        opened[str(args[0])] += 1
    elif event in STARTS:
        processes.append(f"{event} {args[:1]}")


def bytes_read() -> int:
    with open("/proc/self/io") as lines:
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])


begin = threading.Thread.start


def start(thread: threading.Thread) -> None:
    threads.append(thread.name)
    begin(thread)


threading.Thread.start = start  # type: ignore[method-assign]
sys.addaudithook(watch)

import sgl  # noqa: E402
from sgl.runtime.build import build_engine  # noqa: E402, F401
from sgl.runtime.loop import engine_core  # noqa: E402

engine_core.SETTLED = 600.0  # what an idle engine makes for grammars is no part of a start
opened.clear()
read = bytes_read()
engine = sgl.Engine(*sys.argv[1:])
read = bytes_read() - read


@sgl.function
def program(s):  # type: ignore[no-untyped-def]
    s += "The capital of France is"
    s += sgl.gen("answer", max_tokens=8, temperature=0, ignore_eos=True)


text = program.run(backend=engine)["answer"]
found = {
    "modules": sorted(set(sys.modules) - before),
    "opened": {name: times for name, times in opened.items() if name.startswith(("/", ".")) and os.path.isfile(name)},
    "read": read,
    "processes": processes,
    "threads": threads,
    "text": text,
}
print(json.dumps(found), flush=True)
