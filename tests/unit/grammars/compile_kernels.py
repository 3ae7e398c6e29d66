"""Compiles the kernels for a GPU on a machine without one: the interpreter takes what the compiler may refuse."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sgl.grammars.device import device_grammar_tables, grammar_mask_kernels

NUMBERS = ("width", "row_words", "stride", "count", "size", "most_rows", "blocks")
SIZES = {"BLOCK": 64, **device_grammar_tables._ORDERED, **device_grammar_tables._APPLIED}


def compiled(kernel, **types: str) -> str:
    """The PTX of a kernel for a GPU of compute capability 9.0; its arguments are int32 where `types` does not say."""
    names = [parameter.name for parameter in kernel.params]
    constants = {name: SIZES[name] for name in names if name in SIZES}
    signature = {
        name: "constexpr"
        if name in SIZES
        else "i32"
        if name in NUMBERS and name not in types
        else types.get(name, "*i32")
        for name in names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


def main() -> None:
    for logits in ("*fp32", "*bf16", "*fp16"):
        assert ".entry apply_masks" in compiled(grammar_mask_kernels.apply_masks, logits=logits)
    for tokens in ("*i32", "*i64"):
        assert ".entry advance" in compiled(grammar_mask_kernels.advance, tokens=tokens)
    assert ".entry walk_tokens" in compiled(grammar_mask_kernels.walk_tokens)
    assert ".entry order_rows" in compiled(grammar_mask_kernels.order_rows)


if __name__ == "__main__":
    main()
