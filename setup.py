"""The C parts are optional: without a compiler Python and torch do the same work, more slowly."""

from glob import glob

from setuptools import Extension, setup

KERNELS = "runtime/layers/cpu"

setup(
    ext_modules=[
        Extension(
            "sgl.grammars._core",
            ["grammars/core.c"],
            depends=glob("grammars/core/*.h"),
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "sgl.runtime.layers._cpu",
            [f"{KERNELS}.c"],
            depends=glob(f"{KERNELS}_*.h"),
            extra_compile_args=["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
    ]
)
