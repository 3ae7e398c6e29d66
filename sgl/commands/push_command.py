"""`sgl push`: a model into a store that engines read from."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_ABOUT = """\
Writes a model's small files and weights (safetensors) to a redis server or a bucket. Engines then open it by the
same URL; what was there under that URL is replaced.

  sgl push path/to/model redis://localhost:6379/my-model
  sgl push hub/id s3://bucket/models/my-model
"""


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("push", help="write a model to a redis server or a bucket", description=_ABOUT)
    parser.add_argument("model", metavar="MODEL", help="a directory in Hugging Face format, or a hub id")
    parser.add_argument("url", metavar="URL", help="redis://host:port/name, s3://bucket/path, gs:// or az://")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Status 1 where it was not written."""
    from sgl.runtime.errors import RuntimeFailure
    from sgl.runtime.loading import resolve_model
    from sgl.runtime.loading.remote.push_model import push_model

    try:
        size = push_model(resolve_model(options.model), options.url)
    except (RuntimeFailure, OSError) as error:
        print(f"sgl push: {error}", file=sys.stderr)
        return 1
    print(f"{size / 1e6:,.1f} MB written")
    return 0
