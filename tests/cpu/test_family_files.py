"""The table of the files of families says what the files register."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sgl.runtime.models.families.family_files import FILES
from sgl.runtime.models.families.family_registry import FAMILIES, ModelFamilies, ModelFamily

REGISTERS = """
import importlib, json, pkgutil, sys
from sgl.runtime.models import families
from sgl.runtime.models.families import family_registry
found = {}

class Recorded(dict):
    def __setitem__(self, name, family):
        file = sys._getframe(2).f_globals["__name__"].rpartition(".")[2]  # the one whose decorator registers
        found.setdefault(file, []).append(name)
        super().__setitem__(name, family)

family_registry.FAMILIES = Recorded()
for file in pkgutil.iter_modules(families.__path__):
    importlib.import_module(f"{families.__name__}.{file.name}")
print(json.dumps(found))
"""


def test_each_architecture_is_in_the_file_that_the_table_names() -> None:
    done = subprocess.run([sys.executable, "-c", REGISTERS], capture_output=True, text=True)
    found = {file: set(names) for file, names in json.loads(done.stdout).items()}
    assert found == {file: set(names) for file, names in FILES.items()}


def test_each_is_there_once_it_is_asked_for() -> None:
    assert all(FAMILIES[name].architectures for name in FAMILIES)


def test_one_family_imports_its_file_and_no_other() -> None:
    program = """
import sys
from sgl.runtime.models.families import FAMILIES
before = set(sys.modules)
assert len(FAMILIES) > 100 and "Qwen2ForCausalLM" in FAMILIES and "NoForCausalLM" not in FAMILIES
assert set(sys.modules) == before
assert FAMILIES["LlamaForCausalLM"].name == "llama"
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["sgl.runtime.models.families.llama"], done.stderr


def test_a_mapping_of_what_is_registered_and_what_files_have() -> None:
    made = ModelFamilies({"llama": ("LlamaForCausalLM",)})
    made["Mine"] = ModelFamily("mine", ("Mine",), lambda config: pytest.fail("read"))
    assert list(made) == ["LlamaForCausalLM", "Mine"] and len(made) == 2 and "Mine" in made
    with pytest.raises(KeyError):
        made["Other"]
    del made["Mine"]
    assert "Mine" not in made
