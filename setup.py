"""Builds the kernels (Cython's pure Python mode); everything else is in pyproject.toml.

A kernel works uncompiled too (but ``headrace.state.map.skiplist``, which is raw memory), so
``HEADRACE_NO_COMPILE=1`` skips this, for debugging.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent
COMPILED = ("headrace/kernels", "headrace/state/map")


def kernels() -> list[Extension]:
    """One extension per module of the compiled rooms, in a fixed order."""
    if os.environ.get("HEADRACE_NO_COMPILE") == "1":
        return []
    extensions = [
        Extension(
            f"{room.replace('/', '.')}.{path.stem}",
            [str(path.relative_to(HERE))],
            # Debug information is three quarters of a kernel, and a third of the time to make it.
            # Warnings would be about C code that Cython has generated.
            extra_compile_args=["-O2", "-g0", "-w"],
        )
        for room in COMPILED
        for path in sorted((HERE / room).glob("*.py"))
        if path.name != "__init__.py"
    ]
    return cythonize(
        extensions, compiler_directives={"language_level": "3"}, nthreads=0, quiet=True
    )


setup(
    ext_modules=kernels(),
    # As many at once as there are processors; `build_ext --parallel N` says otherwise.
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
