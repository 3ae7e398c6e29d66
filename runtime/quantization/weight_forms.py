"""The forms that weights, activations and the KV cache may be kept in, by the names that options have for them."""

from __future__ import annotations

FP8_BLOCK = "fp8_block"
CALIBRATED = ("int4_gptq",)
FORMS = ("int8", "int4", "int4_hqq", "mxfp4", "nvfp4", FP8_BLOCK, *CALIBRATED)
FOUR_BITS = tuple(form for form in FORMS if form not in ("int8", FP8_BLOCK))
WEIGHTS = (
    "auto",
    "fp8",
    "fp8_tensor",
    *FORMS,
)  # as loaded; float8 with a scale per output; with one for each weight; ...
ACTIVATIONS = {
    "dynamic": None,
    "maximum": 100.0,
    "percentile": 99.99,
}  # of float8 products: each row's own range; what was seen, in percent
KV_DTYPES = ("auto", "fp8")  # the model's; float8 with the pool's scales
GROUP, MX_GROUP, NV_GROUP = 64, 32, 16  # inputs that share a scale: of int4, mxfp4, nvfp4
PACKED_KINDS = ("int4", "int8", "int8_grouped", "float8")  # of projections in a sharded state
