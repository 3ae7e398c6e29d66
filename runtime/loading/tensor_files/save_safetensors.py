"""Files of tensors, readable by all who may read new files in their folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file with the mode of a new file (by the umask), or of the file that it replaces.

    The library itself leaves it readable by the owner alone, since it writes another file and renames that.
    """
    file.touch()
    mode = file.stat().st_mode & 0o777
    save_file(dict(tensors), file, metadata)
    file.chmod(mode)
