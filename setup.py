"""The C parts are optional: without a compiler Python and torch do the same work, more slowly."""

from pathlib import Path

from setuptools import Extension, setup

KERNELS = "runtime/csrc"
NO_SYMBOLS = (
    ["-g0"],
    ["-Wl,-s"],
)  # what the compiler and the linker are told: with debug information the kernels are five times as large


def packages() -> list[str]:
    """Every folder of a floor that has an `__init__.py`; those of `sgl` are at the top."""
    found = [
        init.parent
        for floor in ("sgl", "lang", "runtime", "grammars", "common")
        for init in Path(floor).rglob("__init__.py")
    ]
    return sorted(".".join(("sgl", *folder.parts)).replace("sgl.sgl", "sgl") for folder in found)


def sources(folder: str) -> list[str]:
    """What a C part is made of: one file includes the others."""
    return sorted(str(path) for path in Path(folder).rglob("*") if path.suffix in (".c", ".h", ".inc"))


setup(
    packages=packages(),
    ext_modules=[
        Extension(
            "sgl.grammars._core",
            ["grammars/core/grammar_core_unity.c"],
            depends=sources("grammars/core"),
            extra_compile_args=["-O3", *NO_SYMBOLS[0]],
            extra_link_args=NO_SYMBOLS[1],
            optional=True,
        ),
        Extension(
            "sgl.runtime.layers._cpu",
            [f"{KERNELS}/cpu_kernels_unity.c"],
            depends=sources(KERNELS),
            extra_compile_args=["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", *NO_SYMBOLS[0]],
            extra_link_args=["-pthread", *NO_SYMBOLS[1]],
            optional=True,
        ),
    ],
)
