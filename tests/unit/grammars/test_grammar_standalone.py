"""The grammars need numpy and nothing else."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys


class OnlyNumpy:
    def find_spec(self, name, path=None, target=None):
        head = name.partition(".")[0]
        if head not in sys.stdlib_module_names and head not in ("numpy", "sgl"):
            raise ImportError(f"{name} is not there")


sys.meta_path.insert(0, OnlyNumpy())
for absent in ("torch", "transformers", "tokenizers", "lark", "interegular"):
    try:
        __import__(absent)
    except ImportError:
        continue
    raise SystemExit(f"{absent} could be imported")

from sgl import grammars

tokens = [bytes([i]) for i in range(256)] + [b"true", b'{"', b"</s>"]
vocabulary = grammars.Vocabulary.from_bytes(tokens, [258])
schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
spec = grammars.reasoning({"type": "choices", "choices": ["yes", "no"]})
for grammar, text in (
    (grammars.compile_regex("[a-zé]{2,9}", vocabulary), "né"),
    (grammars.compile_json_schema(schema, vocabulary), '{"a": true}'),
    (grammars.compile_choices(["one", "two"], vocabulary), "two"),
    (grammars.compile_structural(spec, vocabulary), "<think>hm</think>yes"),
):
    matcher = grammar.matcher()
    for byte in text.encode():
        row = matcher.mask()
        assert row.shape == (9,) and row[byte >> 5] >> (byte & 31) & 1, (text, byte)
        assert matcher.accept(byte)
    assert matcher.can_end and matcher.mask()[258 >> 5] >> (258 & 31) & 1
print(grammars.core_name(), len([m for m in sys.modules if m.startswith("sgl.runtime")]))
"""


@pytest.mark.parametrize("pure", ["0", "1"])
def test_masks_with_numpy_alone(pure):
    environment = {"SGL_PURE_PYTHON": pure, "PATH": ""}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    core, runtime_modules = run.stdout.split()
    assert runtime_modules == "0" and (core == "python" or pure == "0")
