"""Chat templates: the text around the turns of a conversation."""

from .chat_turn_template import ChatTemplate, ChatTemplateStyle, Messages
from .conversation import ConversationTurn, ConversationTurns, DefaultTemplateWarning
from .template_registry import (
    chat_template_registry,
    get_chat_template,
    get_chat_template_by_model_path,
    match_chat_template,
    matching_function_registry,
    register_chat_template,
    register_chat_template_matching_function,
)

__all__ = [
    "ChatTemplate",
    "ChatTemplateStyle",
    "ConversationTurn",
    "ConversationTurns",
    "DefaultTemplateWarning",
    "Messages",
    "chat_template_registry",
    "get_chat_template",
    "get_chat_template_by_model_path",
    "match_chat_template",
    "matching_function_registry",
    "register_chat_template",
    "register_chat_template_matching_function",
]
