"""sgl as a model of inspect_ai and of lm-evaluation-harness, with their published packages where they are installed.

They are too large for the dev extra: `pip install sgl[inspect,lm-eval]` in another environment runs these tests.
"""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import sgl

NANO = Path(sgl.__file__).resolve().parents[1] / "runtime/nano"


@pytest.fixture(scope="module")
def engine():
    if not any(map(find_spec, ("inspect_ai", "lm_eval"))):
        pytest.skip("neither inspect_ai nor lm_eval is installed")
    with sgl.Engine(dtype="float32") as opened:
        yield opened


# --- inspect_ai


@pytest.fixture(scope="module")
def model(engine):
    pytest.importorskip("inspect_ai")
    from inspect_ai.model import get_model

    import sgl.evaluation.providers.inspect_provider  # noqa: F401, as the entry point does

    return get_model("sgl/nano", engine=engine)


def generated(model, messages, tools=(), tool_choice=None, **config):
    from inspect_ai.model import GenerateConfig

    options = GenerateConfig(**{"temperature": 0, "max_tokens": 40, **config})
    return model.generate(messages, tools=list(tools), tool_choice=tool_choice, config=options)


def weather():
    from inspect_ai.tool import ToolInfo, ToolParams

    parameters = ToolParams(
        properties={"city": {"type": "string", "description": "Name of the city."}}, required=["city"]
    )
    return ToolInfo(name="get_weather", description="Get the weather of a city.", parameters=parameters)


def test_inspect_gets_the_text_of_the_same_program(engine, model):
    @sgl.function
    def ask(s, question):
        s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=40))

    async def all_at_once():
        return await asyncio.gather(*(generated(model, f"We are {i}, where can we eat?") for i in range(8)))

    outputs = asyncio.run(all_at_once())
    states = ask.run_batch([(f"We are {i}, where can we eat?",) for i in range(8)], backend=engine, temperature=0)
    assert [one.completion for one in outputs] == [state["answer"] for state in states]
    assert outputs[0].stop_reason == "stop" and outputs[0].usage.output_tokens == states[0].usage().generated_tokens


def test_inspect_gets_choices_and_logprobs_and_limits(model):
    config = {"temperature": 1, "num_choices": 3, "seed": 1, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    output = asyncio.run(generated(model, "Hello!", **config))
    assert len(output.choices) == 3 and output.stop_reason == "max_tokens"
    first = output.choices[0].logprobs.content
    assert len(first) == 4 and all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in first)
    assert "".join(one.token for one in first) == output.choices[0].message.text
    with pytest.raises(Exception, match="sgl has no best_of; leave it out"):
        asyncio.run(generated(model, "Hello!", best_of=2))


def test_inspect_gets_calls_of_tools(model):
    from inspect_ai.model import ChatMessageSystem, ChatMessageTool, ChatMessageUser
    from inspect_ai.tool import ToolFunction

    history = [ChatMessageSystem(content="You are helpful."), ChatMessageUser(content="What is the weather in Rome?")]
    output = asyncio.run(generated(model, history, [weather()], ToolFunction("get_weather")))
    (call,) = output.message.tool_calls
    assert (call.function, call.arguments, output.stop_reason) == ("get_weather", {"city": "Rome"}, "tool_calls")
    result = ChatMessageTool(content='{"sky": "sunny"}', tool_call_id=call.id, function="get_weather")
    answer = asyncio.run(generated(model, [*history, output.message, result], [weather()], "none"))
    assert answer.message.tool_calls is None and answer.completion


def test_inspect_gets_json_of_a_schema(model):
    from inspect_ai.model import ResponseSchema
    from inspect_ai.util import JSONSchema

    schema = JSONSchema(type="object", properties={"guests": JSONSchema(type="integer")}, required=["guests"])
    asked = ResponseSchema(name="booking", json_schema=schema)
    output = asyncio.run(generated(model, "A table for two.", response_schema=asked))
    assert isinstance(json.loads(output.completion)["guests"], int)


# --- lm-evaluation-harness


@pytest.fixture(scope="module")
def models(engine):
    """The harness's own model of transformers, and sgl's, with the same weights and lengths."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.registry import get_model

    import sgl.evaluation.providers.lm_eval_model  # noqa: F401, registers it

    hf = get_model("hf")(pretrained=str(NANO), dtype="float32", device="cpu", max_length=64, batch_size=1)
    return hf, get_model("sgl")(engine=engine, max_length=64)


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


TEXT = "A room in Lisbon for two, please. " * 20
PAIRS = [
    *[("", " Rome is"), ("trailing  ", "space"), (TEXT, TEXT[:40]), (TEXT[:300], " x"), ("日本", "語 text")],
    *[("same", " one"), ("same", " two three"), ("same", " two four"), ("q <|user|> is", "<|end|> ok")],
]


def test_the_harness_gets_the_likelihoods_of_its_own_model(models):
    hf, own = (one.loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True) for one in models)
    assert [greedy for _, greedy in own] == [greedy for _, greedy in hf]
    assert [value for value, _ in own] == pytest.approx([value for value, _ in hf], abs=1e-4)


def test_the_harness_gets_the_likelihoods_of_long_texts(models):
    texts = [(TEXT,), ("a",), ("日本語" * 30,)]
    hf, own = (
        one.loglikelihood_rolling(instances("loglikelihood_rolling", texts), disable_tqdm=True) for one in models
    )
    assert own == pytest.approx(hf, rel=1e-6, abs=1e-4)


def test_the_harness_gets_the_texts_of_its_own_model(models):
    asked = [
        ("Book a table for", {"until": [".", " and"], "max_gen_toks": 20}),
        (TEXT, {"until": "\n\n", "max_gen_toks": 10}),
        ("Hello", {"max_gen_toks": 8, "do_sample": False, "temperature": 1.0}),
    ]
    hf, own = (one.generate_until(instances("generate_until", asked), disable_tqdm=True) for one in models)
    assert own == hf
    with pytest.raises(sgl.lang.errors.BadValueError, match="a task generates with 'typical_p'; sgl takes"):
        models[1].generate_until(instances("generate_until", [("a", {"typical_p": 0.5})]), disable_tqdm=True)


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_harness_gets_the_same_conversations(models, goes_on):
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    history += [{"role": "assistant", "content": "Hel"}] if goes_on else []
    hf, own = (one.apply_chat_template(history, add_generation_prompt=not goes_on) for one in models)
    assert own == hf
