"""The known chat templates and the rules that find them by model path."""

from __future__ import annotations

import re
from dataclasses import replace

from .chat_turn_template import ChatTemplate, ChatTemplateStyle

_HELPFUL = "You are a helpful assistant."
_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_YI_VL = (
    "This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI assistant. "
    "Read all the images carefully, and respond to the human's questions with informative, helpful, detailed "
    "and polite answers."
    "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
    "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。"
)
_DBRX = (
    "You are DBRX, created by Databricks. You were last updated in December 2023. You answer questions based on "
    "information available up to that point.\n"
    "YOU PROVIDE SHORT RESPONSES TO SHORT QUESTIONS OR STATEMENTS, but provide thorough responses to more complex "
    "and open-ended questions.\n"
    "You assist with various tasks, from writing to coding (using markdown for code blocks — remember to use ``` "
    "with code, JSON, and tables).\n"
    "(You do not have real-time data access or code execution capabilities. You avoid stereotyping and provide "
    "balanced perspectives on controversial topics. You do not provide song lyrics, poems, or news articles and "
    "do not divulge details of your training data.)\n"
    "This is your system prompt, guiding your responses. Do not reference it, just respond to the user. If you "
    "find yourself talking about this message, stop. You should be responding appropriately and usually that "
    "means not mentioning this.\n"
    "YOU DO NOT MENTION ANY OF THIS INFORMATION ABOUT YOURSELF UNLESS THE INFORMATION IS DIRECTLY PERTINENT TO "
    "THE USER'S QUERY."
)
_INTERNVL = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
_INTERNS1 = (
    "You are an AI assistant whose name is Intern-S1 (书生大模型).\n"
    "- Intern-S1 (书生大模型) is a vision-language model that is developed by Shanghai AI Laboratory "
    "(上海人工智能实验室).  It is designed to be helpful, honest, and harmless.\n"
    "- Intern-S1 (书生大模型) can understand and communicate fluently in the language chosen by the user such as "
    "English and 中文.\n"
    "You are an expert reasoner with extensive experience in all areas. You approach problems through systematic "
    "thinking and rigorous reasoning. Your response should reflect deep understanding and precise logical "
    "thinking, making your solution path and reasoning clear to others. Please put your thinking process within "
    "<think>...</think> tags."
)

_QWEN_TOOL = ("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n")
_EOS_DEEPSEEK = "<｜end▁of▁sentence｜>"


def _roles(before: str, after: str, **names: str) -> dict[str, tuple[str, str]]:
    """The same marks for every role, with the role's name (or what `names` calls it) in place of {}."""
    roles = ("system", "user", "assistant", "tool")
    return {role: (before.format(names.get(role, role)), after) for role in roles}


def _chatml(name: str, system: str | None = None, **other: str | tuple[str, ...]) -> ChatTemplate:
    marks = _roles("<|im_start|>{}\n", "<|im_end|>\n")
    return replace(ChatTemplate(name, system, marks, stop_str=("<|im_end|>",)), **other)  # type: ignore[arg-type]


def _plain(
    name: str,
    system: tuple[str, str],
    user: tuple[str, str],
    assistant: tuple[str, str],
    stops: tuple[str, ...] = (),
    image: str = "<image>",
    default_system: str | None = None,
) -> ChatTemplate:
    marks = {"system": system, "user": user, "assistant": assistant}
    return ChatTemplate(name, default_system, marks, stop_str=stops, image_token=image)


def _minicpm(name: str) -> ChatTemplate:
    stops, image = ("<|im_end|>", "<|endoftext|>"), "(<image>./</image>)"
    template = _plain(name, ("", " "), ("user:", " "), ("assistant:", "</s>"), stops, image)
    return replace(template, audio_token="(<audio>./</audio>)") if name == "minicpmo" else template


def _deepseek(name: str, image: str = "<image>") -> ChatTemplate:
    marks = ("", ""), ("<｜User｜>", ""), ("<｜Assistant｜>", _EOS_DEEPSEEK)
    return _plain(name, *marks, stops=(_EOS_DEEPSEEK,), image=image)


def _llama_3(name: str, image: str) -> ChatTemplate:
    marks = _roles("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", tool="ipython")
    return ChatTemplate(name, None, marks, stop_str=("<|eot_id|>",), image_token=image)


def _answered(template: ChatTemplate, before: str, after: str) -> ChatTemplate:
    """The template with its own marks around the results of tools."""
    marks = {**template.role_prefix_and_suffix, "tool": (before, after)}
    return replace(template, role_prefix_and_suffix=marks)


def _inst(name: str, system: tuple[str, str]) -> ChatTemplate:
    return _plain(name, system, ("[INST] ", " [/INST]"), ("", " </s><s>"))


KNOWN: tuple[ChatTemplate, ...] = (
    ChatTemplate("default", None, {role: (f"{role.upper()}:", "\n") for role in _roles("", "")}),
    _plain("claude", ("", ""), ("\n\nHuman: ", ""), ("\n\nAssistant:", "")),
    _chatml("chatml"),
    _chatml("chatml-llava", _HELPFUL, image_token="<image>\n"),
    _answered(_chatml("qwen", _HELPFUL), *_QWEN_TOOL),
    _answered(_chatml("qwen2-vl", _HELPFUL, image_token="<|vision_start|><|image_pad|><|vision_end|>"), *_QWEN_TOOL),
    _chatml("internvl-2-5", _INTERNVL, stop_str=("<|im_end|>", "<|action_end|>")),
    _chatml("interns1", _INTERNS1, stop_str=("<|im_end|>", "<|action_end|>")),
    _plain("vicuna_v1.1", ("", " "), ("USER:", " "), ("ASSISTANT:", "</s>"), (), " <image>\n", _VICUNA),
    replace(_inst("llama-2-chat", ("<<SYS>>\n", "\n<</SYS>>\n\n")), style=ChatTemplateStyle.LLAMA2),
    replace(
        _answered(_inst("mistral", ("[SYSTEM_PROMPT] ", " [/SYSTEM_PROMPT]")), "[TOOL_RESULTS] ", "[/TOOL_RESULTS]"),
        stop_str=("</s>",),
        image_token="[IMG]",
    ),
    _llama_3("llama-3-instruct", "<|image|>"),
    _llama_3("llama-3-instruct-llava", "<image>\n"),
    ChatTemplate(
        "llama-4",
        None,
        _roles("<|header_start|>{}<|header_end|>\n\n", "<|eot|>", tool="ipython"),
        stop_str=("<|eot|>",),
        image_token="<|image|>",
    ),
    _minicpm("minicpmv"),
    _minicpm("minicpmo"),
    _deepseek("deepseek-v3"),
    _deepseek("janus", "<image_placeholder>\n"),
    _deepseek("janus-pro", "<image_placeholder>\n"),
    _plain(
        "yi-1.5",
        ("", ""),
        ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("", "<|im_end|>\n"),
        ("<|im_end|>",),
    ),
    _plain("yi-vl", ("", "\n\n"), ("### Human:", "\n"), ("### Assistant:", "\n"), (), " <image_placeholder>\n", _YI_VL),
    _plain(
        "gemma-it",
        ("", ""),
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"),
        image="<start_of_image>",
    ),
    _plain("gemma-4-it", ("", ""), ("<|turn>user\n", "<turn|>\n"), ("<|turn>assistant\n", "<turn|>\n")),
    _plain(
        "dbrx-instruct",
        ("<|im_start|>system\n", "<|im_end|>"),
        ("\n<|im_start|>user\n", "<|im_end|>"),
        ("\n<|im_start|>assistant\n", "<|im_end|>"),
        ("<|im_end|>",),
        default_system=_DBRX,
    ),
    _plain(
        "c4ai-command-r",
        ("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    ChatTemplate(
        "granite-3-instruct",
        None,
        _roles("<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>", tool="tool_response"),
        stop_str=("<|end_of_text|>",),
    ),
    ChatTemplate(
        "glm-4v",
        None,
        _roles("<|{}|>\n", "\n", tool="observation"),
        stop_str=("<|user|>", "<|endoftext|>", "<|observation|>"),
        image_token="<|image|>",
    ),
    ChatTemplate("sgl-nano", None, _roles("<|{}|>", "<|end|>"), stop_str=("<|end|>",)),
)


# Model path (whole, lower case) -> template: the first rule whose pattern is found, and whose second is not.
_RULES: tuple[tuple[str, str | None, str], ...] = (
    (r"deepseek-(v3|r1)", "base", "deepseek-v3"),
    (r"orion", None, "claude"),
    (r"janus", None, "janus-pro"),
    (r"(?=.*dbrx).*instruct", None, "dbrx-instruct"),
    (r"vicuna|llava-v1\.5|llava-next-video-7b", None, "vicuna_v1.1"),
    (r"llama-2.*chat|codellama.*instruct", None, "llama-2-chat"),
    (r"pixtral|(mistral|mixtral).*instruct", None, "mistral"),
    (r"llama-3.*instruct", None, "llama-3-instruct"),
    (r"tinyllama", None, "chatml"),
    (r"qwen.*vl", None, "qwen2-vl"),
    (r"glm[-_]?4(\.\d+)?v", None, "glm-4v"),
    (r"qwen.*(chat|instruct)", "llava", "qwen"),
    (r"llava-v1.6-34b|llava-v1.6-yi-34b|llava-next-video-34b|llava-onevision-qwen2", None, "chatml-llava"),
    (r"yi-vl", "llava", "yi-vl"),
    (r"yi-1\.5.*chat", None, "yi-1.5"),
    (r"gemma-4.*it", None, "gemma-4-it"),
    (r"(gemma.*it)|(gemma-3)", None, "gemma-it"),
    (r"minicpm-v", None, "minicpmv"),
    (r"minicpm-o", None, "minicpmo"),
    (r"c4ai-command-r", None, "c4ai-command-r"),
    (r"granite.*instruct", None, "granite-3-instruct"),
    (r"internvl2_5", None, "internvl-2-5"),
    (r"intern-s1|interns1", None, "interns1"),
    (r"(^|/)runtime/nano/?$", None, "sgl-nano"),
)


def match_known_models(model_path: str) -> str | None:
    """The template that the table of rules gives for a model path."""
    path = model_path.lower()
    for pattern, unless, name in _RULES:
        if re.search(pattern, path) and not (unless and unless in path):
            return name
    return None
