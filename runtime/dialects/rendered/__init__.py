"""The format of a model's calls and thoughts, read off what its chat template makes of probe conversations."""

from .choose import MARKED, Choice, chosen
from .probe import Probe, probed
from .thoughts import opened, thoughts_of

__all__ = ["MARKED", "Choice", "Probe", "chosen", "opened", "probed", "thoughts_of"]
