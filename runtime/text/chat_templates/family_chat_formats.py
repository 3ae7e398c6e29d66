"""Chat formats of model families, for checkpoints that bring no template: written from how each format is documented.

A format with special turn tokens is recognised by these. One of plain words ("USER:") looks the same in a
base model, so the checkpoint's name has to say that it was trained for it.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ChatFormat(NamedTuple):
    """kinds: model types, none for any. marks: added tokens that have to be there. Both are words with blanks between.
    called: a pattern for the checkpoint's name.
    """

    name: str
    kinds: str
    marks: str
    source: str
    called: str = ""


_TEXT_ALONE = (
    "{% if message['content'] is not string %}{{ raise_exception('this chat format writes text alone') }}{% endif %}"
)


def _turns(system: str, user: str, assistant: str, prompt: str, start: str = "", between: str = "") -> str:
    """A template by what is written for a turn of each role, "{}" in the place of its content; "" for no such role."""
    cases = [("system", system), ("user", user), ("assistant", assistant)]
    branches = "".join(
        f"{{% {'if' if n == 0 else 'elif'} message['role'] == '{role}' %}}{_turn(role, form)}"
        for n, (role, form) in enumerate(cases)
    )
    refusal = "{% else %}{{ raise_exception('this chat format writes no turns of ' ~ message['role']) }}{% endif %}"
    loop = f"{{% for message in messages %}}{_TEXT_ALONE}{_gap(between)}{branches}{refusal}{{% endfor %}}"
    return f"{start}{loop}{{% if add_generation_prompt %}}{_text(between)}{_text(prompt)}{{% endif %}}"


def _alike(before: str, after: str, start: str = "", **names: str) -> str:
    """The same marks around the turns of every role, with its name (or what `names` calls it) in place of {}."""
    system, user, assistant = (before.format(names.get(role, role)) for role in ("system", "user", "assistant"))
    after = "{}" + after
    return _turns(system + after, user + after, assistant + after, assistant, start=start)


def _turn(role: str, form: str) -> str:
    if not form:
        return f"{{{{ raise_exception('this chat format has no {role} turns; write it into the first user turn') }}}}"
    before, after = form.split("{}")
    return f"{_text(before)}{{{{ message['content'] }}}}{_text(after)}"


def _text(text: str) -> str:
    """Text as an expression: blocks remove the newlines around them. BOS and EOS are the tokenizer's."""
    names = {"BOS": "{{ bos_token }}", "EOS": "{{ eos_token }}"}
    return "".join(names.get(part, "{{ " + repr(part) + " }}") for part in re.split(r"(BOS(?!_)|EOS)", text) if part)


def _gap(between: str) -> str:
    return "{% if not loop.first %}" + _text(between) + "{% endif %}" if between else ""


def _system_in_user(user_before: str, system_before: str, system_after: str, rest: str) -> str:
    """Formats that put the system's words before the first user's, inside its turn."""
    return (
        "{% set ns = namespace(system='') %}{% for message in messages %}"
        + _TEXT_ALONE
        + "{% if message['role'] == 'system' and loop.first %}"
        f"{{% set ns.system = {system_before!r} ~ message['content'] ~ {system_after!r} %}}"
        "{% elif message['role'] == 'user' %}"
        f"{_text(user_before)}{{{{ ns.system ~ message['content'] }}}}{{% set ns.system = '' %}}{rest}"
        "{% else %}{{ raise_exception('this chat format writes no turns of ' ~ message['role'] ~ ' here') }}{% "
        "endif %}{% endfor %}"
    )


_BOS = "{{ bos_token }}"
_GEMMA_USER, _GEMMA_MODEL, _GEMMA_END = "<start_of_turn>user\n", "<start_of_turn>model\n", "<end_of_turn>\n"
_GEMMA_MARKS = "<start_of_turn> <end_of_turn>"
_COMMAND, _COMMAND_MARKS = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>", "<|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|>"

CHAT_FORMATS = (
    ChatFormat(
        "llama3",
        "llama",
        "<|start_header_id|> <|end_header_id|> <|eot_id|>",
        _alike("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", _BOS),
    ),
    ChatFormat("phi4", "phi3", "<|im_start|> <|im_sep|> <|im_end|>", _alike("<|im_start|>{}<|im_sep|>", "<|im_end|>")),
    ChatFormat("chatml", "", "<|im_start|> <|im_end|>", _alike("<|im_start|>{}\n", "<|im_end|>\n")),
    ChatFormat(
        "gemma",
        "gemma gemma2",
        _GEMMA_MARKS,
        _turns("", _GEMMA_USER + "{}" + _GEMMA_END, _GEMMA_MODEL + "{}" + _GEMMA_END, _GEMMA_MODEL, start=_BOS),
    ),
    ChatFormat(
        "gemma3",
        "gemma3 gemma3_text gemma3n gemma3n_text",
        _GEMMA_MARKS,
        _BOS
        + _system_in_user(
            _GEMMA_USER,
            "",
            "\n\n",
            _text(_GEMMA_END)
            + "{% elif message['role'] == 'assistant' %}"
            + _text(_GEMMA_MODEL)
            + "{{ message['content'] }}"
            + _text(_GEMMA_END),
        )
        + "{% if add_generation_prompt %}"
        + _text(_GEMMA_MODEL)
        + "{% endif %}",
    ),
    ChatFormat("phi3", "phi3 phimoe phi3small", "<|user|> <|assistant|> <|end|>", _alike("<|{}|>\n", "<|end|>\n")),
    ChatFormat(
        "command-r",
        "cohere cohere2",
        f"<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> {_COMMAND_MARKS}",
        _alike(_COMMAND, "<|END_OF_TURN_TOKEN|>", _BOS, system="SYSTEM", user="USER", assistant="CHATBOT"),
    ),
    ChatFormat(
        "granite",
        "granite granitemoe granitemoeshared granitemoehybrid",
        "<|start_of_role|> <|end_of_role|>",
        _alike("<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>\n"),
    ),
    ChatFormat(
        "deepseek",
        "",
        "<｜User｜> <｜Assistant｜>",
        _turns("{}", "<｜User｜>{}", "<｜Assistant｜>{}EOS", "<｜Assistant｜>", start=_BOS),
    ),
    ChatFormat(
        "glm4",
        "glm glm4 chatglm",
        "[gMASK] <sop> <|system|> <|user|> <|assistant|>",
        _turns("<|system|>\n{}", "<|user|>\n{}", "<|assistant|>\n{}", "<|assistant|>", start=_text("[gMASK]<sop>")),
    ),
    ChatFormat(
        "mistral",
        "mistral mixtral ministral",
        "[INST] [/INST]",
        _turns("", "[INST] {}[/INST]", " {}EOS", "", start=_BOS),
    ),
    ChatFormat(
        "mistral-v1",
        "mistral mixtral",
        "",
        _turns("", "[INST] {} [/INST]", " {}EOS", "", start=_BOS),
        r"mi[sx]tral.*instruct",
    ),
    ChatFormat(
        "llama2",
        "llama",
        "",
        _system_in_user(
            "BOS[INST] ",
            "<<SYS>>\n",
            "\n<</SYS>>\n\n",
            "{{ ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' ~ message['content'] ~ ' ' ~ eos_token }}",
        ),
        r"llama-?2.*chat",
    ),
    ChatFormat("zephyr", "", "", _alike("<|{}|>\n", "EOS\n"), r"zephyr"),
    ChatFormat(
        "vicuna", "llama", "", _turns("{} ", "USER: {} ", "ASSISTANT: {}EOS", "ASSISTANT:", start=_BOS), r"vicuna"
    ),
    ChatFormat(
        "falcon-chat",
        "falcon",
        "",
        _turns("System: {}", "User: {}", "Falcon: {}", "Falcon:", between="\n"),
        r"falcon.*chat",
    ),
    ChatFormat(
        "falcon-instruct",
        "falcon",
        "",
        _turns("{}", "User: {}", "Assistant: {}", "Assistant:", between="\n"),
        r"falcon.*instruct",
    ),
)
