"""The C core of the grammars is optional: without a compiler the pure Python twin is used."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("sgl.grammars._core", ["grammars/core.c"], extra_compile_args=["-O3"], optional=True)
    ]
)
