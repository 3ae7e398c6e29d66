"""Chat templates: their files, a bounded Jinja sandbox, and what a template supports."""
