"""One table of sampling options: what is written from it is up to date, and every place has every option."""

from __future__ import annotations

import inspect
import math
import pickle
import runpy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sgl
from sgl.lang.errors import BadValueError, UnknownOptionError, UnsupportedByBackendError
from sgl.lang.nodes.primitives import _TYPED_ORDER
from sgl.lang.sampling.option_table import POSITIONAL, PROGRAM_OPTIONS
from sgl.lang.sampling.options import DEFAULTS, NAMES, RUN_NAMES, SamplingOptions
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_options import SamplingOption, option, options_of
from sgl.runtime.sampling.sampling_params import SAMPLING_OPTIONS, SamplingParams
from sgl.runtime.server.protocols.chat.chat_types import ChatRequest
from sgl.runtime.server.protocols.messages.messages_types import MessagesRequest
from sgl.runtime.server.protocols.native.native_types import GenerateFields, SamplingFields
from sgl.runtime.server.protocols.ollama.ollama_types import OllamaOptions
from sgl.runtime.server.protocols.responses.responses_types import ResponseRequest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs/site/sampling.py"), run_name="script")
REQUESTS = {
    "native": (SamplingFields, GenerateFields),
    "openai": (ChatRequest,),
    "responses": (ResponseRequest,),
    "messages": (MessagesRequest,),
    "ollama": (OllamaOptions,),
}
CALLER_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
BAD: dict[str, Any] = {
    "integer": 1.5,
    "number": "1",
    "switch": "yes",
    "texts": "text",
    "patterns": "text",
    "token ids": "text",
    "biases": [1],
}


def gen(*args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not appended
        return sgl.gen(*args, **options)


@pytest.mark.parametrize("name", SCRIPT["FILES"])
def test_what_is_written_from_the_table_is_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text == SCRIPT["FILES"][name](text), f"{name} is not what the table says; run docs/site/sampling.py"


@pytest.mark.parametrize("each", PROGRAM_OPTIONS.values(), ids=PROGRAM_OPTIONS)
def test_programs_have_every_option(each: SamplingOption) -> None:
    assert each.program in NAMES and each.program in inspect.signature(sgl.gen).parameters
    assert (each.program in RUN_NAMES) == each.in_run
    shown = f"`{CALLER_NAMES.get(each.program or '', each.program)}`"
    assert f"\n| {shown} |" in (ROOT / "docs/language.md").read_text()
    if each.in_run:
        assert CALLER_NAMES.get(each.program or "", each.program) in (sgl.SglFunction.run.__doc__ or "")


@pytest.mark.parametrize("protocol", REQUESTS)
def test_requests_have_every_option(protocol: str) -> None:
    fields = {name for model in REQUESTS[protocol] for name in model.model_fields}
    wanted = {each.names[protocol] for each in PROGRAM_OPTIONS.values() if protocol in each.names}
    assert wanted <= fields | ({"max_tokens"} if protocol == "openai" else set())


def test_the_newest_option_reaches_the_engine_from_everywhere() -> None:
    """top_n_sigma is in no file of a protocol, and in none of the language that is written by hand."""
    native = SamplingFields.model_validate({"top_n_sigma": 1.5})
    chat = ChatRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}], "top_n_sigma": 1.5})
    assert getattr(native, "top_n_sigma") == 1.5  # noqa: B009
    assert chat.params(5, False, 0) == SamplingParams(max_tokens=5, top_n_sigma=1.5)
    assert gen("x", top_n_sigma=1.5).sampling_params == SamplingOptions(top_n_sigma=1.5)
    by_hand = [
        path
        for path in (*ROOT.glob("lang/**/*.py"), *ROOT.glob("runtime/server/**/*.py"), *ROOT.glob("sgl/**/*.py"))
        if "top_n_sigma" in path.read_text()
    ]
    assert [str(path.relative_to(ROOT)) for path in by_hand] == ["lang/sgl_function.py", "lang/sampling/gen_options.py"]


def test_servers_without_an_option_refuse_it() -> None:
    from sgl.lang.backends.apis import anthropic_request
    from sgl.lang.backends.openai import openai_request
    from sgl.lang.backends.openai.openai_constraints import ServerCapabilities

    for check in (openai_request.check_options, anthropic_request.check_options):
        with pytest.raises(UnsupportedByBackendError, match=r"top_n_sigma \(given: 1\.5\); leave it out"):
            check(SamplingOptions(top_n_sigma=1.5), ServerCapabilities("model", constrained=frozenset({"vllm"})))
        check(SamplingOptions(top_n_sigma=0.0, speculation=False), ServerCapabilities("model"))


@pytest.mark.parametrize("name", SAMPLING_OPTIONS)
def test_a_value_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: BAD[SAMPLING_OPTIONS[name].kind]}).validate()


@pytest.mark.parametrize("name", [name for name, each in SAMPLING_OPTIONS.items() if each.low > -math.inf])
def test_the_range_is_the_one_of_the_table(name: str) -> None:
    each = SAMPLING_OPTIONS[name]
    whole = each.kind == "integer"
    step = 1 if whole else 0.01
    SamplingParams(**{name: int(each.low) if whole else each.low + step * each.open_low}).validate()
    outside = each.low - step * (not each.open_low)
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: int(outside) if whole else outside}).validate()
    if each.high < math.inf:
        SamplingParams(**{name: each.high}).validate()
        with pytest.raises(ConfigError, match=name):
            SamplingParams(**{name: each.high + step}).validate()


def test_params_are_as_a_plain_dataclass() -> None:
    params = SamplingParams(5, temperature=0.5, logit_bias={3: 1.0})
    assert pickle.loads(pickle.dumps(params)) == params == replace(params)
    assert params != replace(params, min_p=0.1) and not hasattr(params, "__dict__")
    assert SamplingParams().logit_bias is not SamplingParams().logit_bias
    assert SamplingParams() == SamplingParams(**{name: each.default for name, each in SAMPLING_OPTIONS.items()})


def test_a_protocol_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="there is no protocol 'opanai'"):
        option(0.0, "", "native opanai+")


def test_a_table_of_other_fields() -> None:
    from dataclasses import dataclass

    @dataclass
    class Fields:
        other: float = option(0.0, "Does something.", "native=less openai+", low=0, servers="vllm")

    (found,) = options_of(Fields).values()
    assert (found.name, found.kind, found.program) == ("other", "number", "other")
    assert found.names == {"native": "less", "openai": "other"} and found.servers == {"vllm"}
    assert not found.standard_in("openai") and found.standard_in("native") and not found.standard_in("ollama")


def test_positional_arguments_of_gen() -> None:
    values = dict(zip(POSITIONAL, ("x", 5, 1, 2, "a", [7], "b", 0.5, 0.9, 4), strict=False))
    assert gen(*values.values()).sampling_params == gen(**values).sampling_params
    assert gen(*values.values()).sampling_params.top_k == 4
    assert _TYPED_ORDER[:3] == ("name", "max_tokens", "n") and _TYPED_ORDER[-1] == "return_text_in_logprobs"


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (("x", 5), {"max_tokens": 4}, r"gen\('x'\) got multiple values for argument 'max_tokens'"),
        (("x", int), {"type": str}, r"gen\('x'\) got multiple values for argument 'type'"),
        ((None,) * 24, {}, "takes up to 23 positional arguments, but 24 were given; give options by name"),
        (("x",), {"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
    ],
)
def test_arguments_that_gen_refuses(args: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownOptionError, match=message):
        sgl.gen(*args, **options)


def test_switches_of_programs_are_checked() -> None:
    with pytest.raises(BadValueError, match=r"gen\('x'\): ignore_eos is 'no'; give True or False"):
        sgl.gen("x", ignore_eos="no")
    assert DEFAULTS.ignore_eos is False
