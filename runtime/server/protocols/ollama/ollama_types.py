"""What Ollama's routes take. A null is the same as leaving the field out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sgl.runtime.sampling.sampling_options import SamplingOption

from ...http.validation_errors import First
from ..chat.chat_types import MOST_MESSAGES, MOST_TOOLS, FunctionTool
from ..openai_common.openai_request_types import StrictModel
from ..openai_common.sampling_fields import with_sampling_fields


def _type(option: SamplingOption) -> Any:
    return {"integer": int, "texts": str | Annotated[list[str], First]}.get(option.kind, float) | None


@with_sampling_fields("ollama", _type)
class OllamaOptions(StrictModel):
    """Those under the line are taken and of no effect: they say how Ollama's own engine runs."""

    num_predict: int | None = Field(None, ge=-2, lt=2**31)  # below 0: as many as the context holds
    # ---
    num_ctx: int | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    repeat_last_n: int | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    numa: bool | None = None
    low_vram: bool | None = None


class OllamaCalledFunction(StrictModel):
    name: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None
    description: str | None = None


class OllamaToolCall(StrictModel):
    id: str | None = None
    type: str | None = None
    function: OllamaCalledFunction


class OllamaMessage(StrictModel):
    """`images` may only be an empty list."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Annotated[list[Any], First] | None = Field(None, max_length=0)
    tool_calls: Annotated[list[OllamaToolCall], First] = Field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class OllamaRequest(StrictModel):
    """What both requests have. `keep_alive` is of no effect."""

    model: str | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions = Field(default_factory=lambda: OllamaOptions.model_validate({}))
    stream: bool = True
    think: bool | str | None = None
    keep_alive: Any = None


class OllamaChat(OllamaRequest):
    """The body of POST /api/chat."""

    messages: Annotated[list[OllamaMessage], First] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: Annotated[list[FunctionTool], First] = Field(default_factory=list, max_length=MOST_TOOLS)


class OllamaGenerate(OllamaRequest):
    """The body of POST /api/generate. Prompts are a user's message: raw ones are for /v1/completions."""

    prompt: str = ""
    system: str | None = None
    images: Annotated[list[Any], First] | None = Field(None, max_length=0)
    raw: Literal[False] = False
    suffix: Literal[""] = ""


class OllamaShow(StrictModel):
    """The body of POST /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
