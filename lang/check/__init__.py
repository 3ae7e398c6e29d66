"""Finds mistakes in programs without running them: `sgl check`, and this package for tools.

for problem in check_source(text, "qa.py"):
    print(problem)          # qa.py:7:12: SGL101 no gen, select or var_scope has made 'anwser' before this; ...
"""

from .check_api import check_path, check_program, check_source, files_of
from .check_problem import RULES, Problem, Rule, Severity

__all__ = [
    "RULES",
    "Problem",
    "Rule",
    "Severity",
    "check_path",
    "check_program",
    "check_source",
    "files_of",
]
