"""Chat templates: the text around the turns of a conversation."""

from .conversation import ConversationTurns, DefaultTemplateWarning, ConversationTurn
from .template_registry import (
    chat_template_registry,
    get_chat_template,
    get_chat_template_by_model_path,
    match_chat_template,
    matching_function_registry,
    register_chat_template,
    register_chat_template_matching_function,
)
from .chat_turn_template import ChatTemplate, ChatTemplateStyle, Messages

__all__ = [
    "ChatTemplate", "ChatTemplateStyle", "ConversationTurns", "DefaultTemplateWarning", "Messages", "ConversationTurn",
    "chat_template_registry", "get_chat_template", "get_chat_template_by_model_path", "match_chat_template",
    "matching_function_registry", "register_chat_template", "register_chat_template_matching_function",
]  # fmt: skip
