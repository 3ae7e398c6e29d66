"""Independent engines say whether a grammar accepts a text: a second opinion on ours."""

from sgl.grammars.second_opinion.verification import TextVerdicts, Verdict, Verification, verify

__all__ = ["TextVerdicts", "Verdict", "Verification", "verify"]
