"""Adapters (LoRA): read from PEFT's files, kept on the host and in slots on the device, added to the products of a
step.

`docs/adapters.md` says what is read, what is refused, and how adapters are kept apart.
"""
