"""Builds the kernels (Cython's pure Python mode); everything else is in pyproject.toml.

A kernel works uncompiled too (but ``headrace.state.map.skiplist``, which is raw memory), so
``HEADRACE_NO_COMPILE=1`` skips this, for debugging.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent


def kernels() -> list[Extension]:
    """One extension per kernel module, in a fixed order."""
    if os.environ.get("HEADRACE_NO_COMPILE") == "1":
        return []
    sources = sorted(
        path.relative_to(HERE)
        for path in (HERE / "headrace" / "kernels").glob("*.py")
        if path.name != "__init__.py"
    )
    extensions = [
        Extension(
            f"headrace.kernels.{path.stem}", [str(path)], extra_compile_args=["-O2"]
        )
        for path in sources
    ]
    return cythonize(
        extensions,
        compiler_directives={"language_level": "3"},
        nthreads=0,
        quiet=True,
    )


setup(ext_modules=kernels())
