"""inspect_ai's models on the embedded engine: `inspect eval task.py --model sgl/nano`.

The entry point of the package names this module, so that inspect_ai finds it by the name `sgl`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    TopLogprob,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo

from sgl.lang.errors import BadValueError
from sgl.lang.nodes.primitives import assistant, gen
from sgl.lang.program.async_program_state import AsyncProgramState
from sgl.lang.program.program_state import ProgramState
from sgl.lang.sgl_function import function
from sgl.lang.tools.chat_messages import messages
from sgl.lang.tools.tool_calls import ToolCalls
from sgl.lang.tools.toolbox import Toolbox
from sgl.lang.tools.toolbox import tools as toolbox_of

from .engine_choice import engine_named

REFUSED = ("best_of", "prompt_logprobs", "modalities", "extra_body")
SAME = ("max_tokens", "temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


@function
async def answer(s: AsyncProgramState, history: list[Any], toolbox: Toolbox | None, choice: str, options: Any) -> None:
    """A conversation, and the model's next message: text, or calls of tools."""
    s += messages(history)
    s += assistant(gen("answer", **options) if toolbox is None else toolbox.call("answer", choice, **options))


class SglModel(ModelAPI):
    """A model of inspect_ai that an engine in this process runs. Concurrent samples share its batches and its cache.

    model_name: `nano`, or what `sgl.Engine` loads. model_args: the options of `sgl.Engine`, or `engine`, an open one.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),
        engine: Any = None,
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self._opened = engine is None
        self.engine = engine_named(model_name, model_args) if engine is None else engine

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        started = time.perf_counter()
        toolbox = toolbox_of(map(_tool, tools)) if tools and tool_choice != "none" else None
        history = with_tools([_message(one) for one in input], toolbox)
        options = gen_options(config, toolbox is not None)
        state = await answer.arun(history, toolbox, _choice(tool_choice), options, backend=self.engine)
        if error := state.error():
            raise error
        return ModelOutput(
            model=self.model_name,
            choices=list(_choices(state, self.model_name, toolbox is not None)),
            usage=_usage(state),
            time=time.perf_counter() - started,
        )

    def max_connections(self) -> int:
        """As many samples as the engine computes at once."""
        return int(self.engine.fixed_info["max_running"])

    def connection_key(self) -> str:
        return self.model_name

    def close(self) -> None:
        if self._opened:
            self.engine.close()


@modelapi(name="sgl")
def sgl() -> type[ModelAPI]:
    return SglModel


def gen_options(config: GenerateConfig, with_tools: bool) -> dict[str, Any]:
    """The options of the gen. Without max_tokens a text may fill the context.

    Raises BadValueError for what the engine does not do.
    """
    for name in REFUSED:
        if getattr(config, name):
            raise BadValueError(f"sgl has no {name}; leave it out of the task's configuration")
    options = {name: value for name in SAME if (value := getattr(config, name)) is not None}
    options = {"max_tokens": None, **options, "stop": config.stop_seqs, "logit_bias": config.logit_bias}
    if config.logprobs:
        options |= {"return_logprob": True, "top_logprobs_num": config.top_logprobs or 0}
    if config.num_choices is not None:
        options["n"] = config.num_choices
    if config.response_schema is not None:
        if with_tools:
            raise BadValueError("a response_schema and tools cannot be in one call; leave out one of them")
        options["json_schema"] = config.response_schema.json_schema.model_dump(exclude_none=True, by_alias=True)
    return {name: value for name, value in options.items() if value is not None or name == "max_tokens"}


def with_tools(history: list[dict[str, Any]], toolbox: Toolbox | None) -> list[dict[str, Any]]:
    """The messages, with the description of the tools at the end of the system turn."""
    if toolbox is None:
        return history
    if history and history[0]["role"] == "system":
        first = {"role": "system", "content": [history[0]["content"], "\n\n", toolbox]}
        return [first, *history[1:]]
    return [{"role": "system", "content": toolbox}, *history]


def _message(message: ChatMessage) -> dict[str, Any]:
    """As OpenAI's chat API has it."""
    if message.role == "tool":
        return {"role": "tool", "content": f"Error: {message.error.message}" if message.error else message.text}
    calls = message.tool_calls if isinstance(message, ChatMessageAssistant) else None
    if calls:
        about = [{"id": one.id, "function": {"name": one.function, "arguments": one.arguments}} for one in calls]
        return {"role": message.role, "content": message.text, "tool_calls": about}
    return {"role": message.role, "content": message.text if message.role != "user" else _parts(message.content)}


def _parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": one.text} if one.type == "text" else _picture(one) for one in content]


def _picture(part: Any) -> dict[str, Any]:
    if part.type != "image":
        raise BadValueError(f"a message has {part.type} content; sgl takes text and images")
    return {"type": "image_url", "image_url": {"url": part.image}}


def _tool(info: ToolInfo) -> dict[str, Any]:
    about = {"name": info.name, "description": info.description}
    return {"type": "function", "function": {**about, "parameters": info.parameters.model_dump(exclude_none=True)}}


def _choice(tool_choice: ToolChoice) -> str:
    return tool_choice.name if isinstance(tool_choice, ToolFunction) else "required" if tool_choice == "any" else "auto"


def _choices(state: ProgramState, model: str, called: bool) -> Iterator[ChatCompletionChoice]:
    texts, metas = state["answer"], state.get_meta_info("answer")
    read = state.get("answer") if called else None
    for text, meta in [(texts, metas)] if isinstance(texts, str) else zip(texts, metas, strict=True):
        found = read if isinstance(read, ToolCalls) else ToolCalls(text)
        calls = [ToolCall(one.id, one.name, one.arguments) for one in found] or None
        message = ChatMessageAssistant(content=found.text, tool_calls=calls, model=model, source="generate")
        logprobs = _logprobs(meta) if "output_token_logprobs" in meta else None
        yield ChatCompletionChoice(message=message, stop_reason=_reason(meta, bool(calls)), logprobs=logprobs)


def _reason(meta: Mapping[str, Any], called: bool) -> StopReason:
    if (meta.get("finish_reason") or {}).get("type") == "length":
        return "max_tokens"
    return "tool_calls" if called else "stop"


def _logprobs(meta: Mapping[str, Any]) -> Logprobs:
    entries = meta["output_token_logprobs"]
    tops = meta.get("output_top_logprobs") or [None] * len(entries)
    return Logprobs(
        content=[
            Logprob(token=text, logprob=value, top_logprobs=top and [TopLogprob(token=t, logprob=v) for v, _, t in top])
            for (value, _, text), top in zip(entries, tops, strict=True)
        ]
    )


def _usage(state: ProgramState) -> ModelUsage:
    used = state.usage()
    return ModelUsage(
        input_tokens=used.prompt_tokens,
        output_tokens=used.generated_tokens,
        total_tokens=used.prompt_tokens + used.generated_tokens,
        input_tokens_cache_read=used.cached_tokens,
    )
