"""No model: what a program sees of how it was started."""

import json
import os
import sys
import time
from pathlib import Path

import sglang as sgl


def typed(x: int) -> None:
    """Its annotations are objects, unless the file says otherwise."""


command = sys.argv[1] if len(sys.argv) > 1 else "show"
if command == "show":
    print(
        json.dumps(
            {
                "name": __name__,
                "argv": sys.argv,
                "path": sys.path[0],
                "file": __file__,
                "gen": repr(sgl.gen("x")),
                "type": repr(typed.__annotations__["x"]),
            }
        )
    )
elif command == "exit":
    sys.exit(3)
elif command == "fail":
    raise ValueError("the program's own error")
elif command == "sleep":
    Path(os.environ["READY"]).touch()
    time.sleep(60)
