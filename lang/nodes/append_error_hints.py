"""What people meant who append what cannot be appended, or who use the names that other libraries have."""

from __future__ import annotations

from typing import Any

from .ir import SglExpr

# options of gen that others have: vLLM's and SGLang's guided decoding, OpenAI's requests, llama.cpp, outlines
GEN_OPTIONS = {
    "grammar": "give ebnf= for a grammar, regex= for a regular expression",
    "guided_grammar": "give ebnf=",
    "guided_regex": "give regex=",
    "pattern": "give regex=",
    "guided_json": "give json_schema=, or a type: gen(name, Model)",
    "response_format": "give json_schema=, or a type: gen(name, Model)",
    "response_model": "give the type as the second argument: gen(name, Model)",
    "output_type": "give the type as the second argument: gen(name, Model)",
    "schema": "give json_schema=, or a type: gen(name, Model); did you mean 'json_schema'?",
    "json": "give json_schema=, or a type: gen(name, Model); did you mean 'json_schema'?",
    "guided_choice": "give choices=",
    "options": "give choices=",
    "max_length": "give max_tokens=",
    "max_completion_tokens": "give max_tokens=",
    "num_predict": "give max_tokens=",
    "n_predict": "give max_tokens=",
    "stop_sequences": "give stop=",
    "repeat_penalty": "give repetition_penalty=",
    "logprobs": "give return_logprob=True, and top_logprobs_num=",
    "do_sample": "give temperature=0 for the most likely text",
    "stream": "it belongs to the run: program.run(..., stream=True)",
    "backend": "it belongs to the run: program.run(..., backend=...)",
    "model": "the model belongs to the backend: program.run(..., backend=sgl.Engine(path))",
    "prompt": "append the prompt before it: s += prompt + sgl.gen(...)",
}


def what_to_append(value: Any) -> str:
    """What to write for a value that is neither a text nor an expression."""
    if hasattr(value, "stream_executor"):
        return (
            'a state: append its text, state.text() or state["name"]; a program goes on in this state by '
            "s.call(program, ...)"
        )
    if hasattr(value, "arg_names"):  # a program
        return f"to run the program here, write s.call({value.__name__}, ...)"
    if isinstance(value, dict) and "role" in value:
        return "for messages write s += sgl.messages([...])"
    if isinstance(value, list | tuple):
        return _of_list(value)
    if callable(value) and hasattr(value, "__name__"):
        return f"call it: {value.__name__}(...)"
    return "str() it?"


def _of_list(value: Any) -> str:
    if any(isinstance(item, SglExpr) for item in value):
        return "join the parts with +"
    if any(isinstance(item, dict) and "role" in item for item in value):
        return "for messages write s += sgl.messages([...])"
    return "a variable of joined forks is a list: append its items"


def attribute_meant(name: str) -> str:
    """For an attribute that a state does not have: how the state is appended to. "" if it is none of these."""
    if name in ("append", "add", "extend", "write", "put", "push"):
        return "; append with s += ..."
    if name in ("gen", "select", "image", "video", "tools", "fields", "labels", "plain", "special"):
        return f"; append what sgl.{name} makes: s += sgl.{name}(...)"
    if name in ("generate", "complete"):
        return "; append what sgl.gen makes: s += sgl.gen(...)"
    if name in ("run", "run_batch"):
        return "; another program goes on here by s.call(program, ...)"
    return ""
