"""The sampling options of programs: those of the engine that programs can give, and those of the language alone."""

from __future__ import annotations

from typing import Any

from sgl.runtime.sampling.sampling_options import SamplingOption
from sgl.runtime.sampling.sampling_params import OTHER_NAMES as _ENGINE_NAMES
from sgl.runtime.sampling.sampling_params import SAMPLING_OPTIONS

OTHER_NAMES = {ours: theirs for theirs, ours in _ENGINE_NAMES.items()}  # gen and run each know both


def _own(
    name: str, kind: str, doc: str, protocols: str = "", in_run: bool = False, default: Any = None, **others: Any
) -> SamplingOption:
    names = dict.fromkeys(protocols.split(), name)
    return SamplingOption(name, kind, default, doc, program=name, in_run=in_run, names=names, needed=False, **others)


_OWN = (
    _own("n", "samples", "So many texts; the state continues with the first.", "native openai", True, 1, low=1),
    _own("logprob_start_len", "integer", "From this token of the prompt on, logprobs of it too.", "native", True),
    _own("return_text_in_logprobs", "switch", "Log-probabilities come with their tokens' texts.", "native", True),
    _own("dtype", "dtype", "An older name of `type` for int, float, bool and str."),
    _own("regex", "regex", "The text matches this regular expression.", "native openai"),
    _own("json_schema", "schema", "The text is JSON of this schema.", "native openai"),
    _own("ebnf", "text", "The text is of this grammar.", "native openai"),
    _own("structural_tag", "tag", "Free text with constrained parts.", "native"),
    _own("copied_from", "document", "The text that copied values of the type are pieces of; by default the user turn."),
    _own("timeout", "seconds", "Seconds from the moment at which the gen is appended."),
)
_ENGINE = (option for option in SAMPLING_OPTIONS.values() if option.program)
PROGRAM_OPTIONS = {option.program or "": option for option in (*_ENGINE, *_OWN)}  # by their names in programs

# what a call of SGLang's first protocol always has; the list does not grow
FIRST_NAMES = (
    *("max_new_tokens", "min_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k"),
    *("min_p", "frequency_penalty", "presence_penalty", "ignore_eos", "regex", "json_schema"),
)
# the order of gen's positional arguments, which does not grow: every other option is given by name
POSITIONAL = (
    *("name", "max_tokens", "min_tokens"),
    *FIRST_NAMES[2:13],
    *("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"),
    *("dtype", "choices", "choices_method", "regex", "json_schema"),
)

_ANNOTATIONS = {
    **dict.fromkeys(("integer", "samples"), "int"),
    **dict.fromkeys(("number", "seconds"), "float"),
    **dict.fromkeys(("texts", "patterns"), "Strings"),
    **dict.fromkeys(("regex", "text", "document"), "str"),
    **{"switch": "bool", "token ids": "list[int]", "biases": "dict[int, float]"},
}


def annotation(option: SamplingOption) -> str:
    """What callers may give, as source."""
    found = _ANNOTATIONS.get(option.kind, "Any")
    return found if found in ("Any", "Strings") else f"{found} | None"
