"""What Ollama's routes take. A null is the same as leaving the field out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..chat.types import MOST_MESSAGES, MOST_TOOLS, FunctionTool
from ..fields import First
from ..openai_types import Strict


class Options(Strict):
    """Those under the line are taken and of no effect: they say how Ollama's own engine runs."""

    num_predict: int | None = Field(None, ge=-2, lt=2**31)  # below 0: as many as the context holds
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], First] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
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


class CalledFunction(Strict):
    name: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None
    description: str | None = None


class Call(Strict):
    id: str | None = None
    type: str | None = None
    function: CalledFunction


class Message(Strict):
    """`images` may only be an empty list."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Annotated[list[Any], First] | None = Field(None, max_length=0)
    tool_calls: Annotated[list[Call], First] = Field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Asked(Strict):
    """What both requests have. `keep_alive` is of no effect."""

    model: str | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: Options = Field(default_factory=lambda: Options.model_validate({}))
    stream: bool = True
    think: bool | str | None = None
    keep_alive: Any = None


class OllamaChat(Asked):
    """The body of POST /api/chat."""

    messages: Annotated[list[Message], First] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: Annotated[list[FunctionTool], First] = Field(default_factory=list, max_length=MOST_TOOLS)


class OllamaGenerate(Asked):
    """The body of POST /api/generate. Prompts are a user's message: raw ones are for /v1/completions."""

    prompt: str = ""
    system: str | None = None
    images: Annotated[list[Any], First] | None = Field(None, max_length=0)
    raw: Literal[False] = False
    suffix: Literal[""] = ""


class OllamaShow(Strict):
    """The body of POST /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
