"""Builds the kernels (Cython's pure Python mode); everything else is in pyproject.toml.

A kernel works uncompiled too (but ``headrace.state.map.skiplist``, which is raw memory), so
``HEADRACE_NO_COMPILE=1`` skips this, for debugging.
"""

import os
import shutil
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
COMPILED = ("headrace/kernels", "headrace/state/map")
SHARED = "headrace.kernels.shared_utility"
"""Generated module with the code for memory views, which each kernel would have otherwise: a third
of the time to build, and half of the size."""
# Debug information is three quarters of a kernel, and a third of the time to make it.  Warnings
# would be about C code that Cython has generated.
ARGUMENTS = ["-O2", "-g0", "-w"]
# Cython 3.3 forgets these in a kernel that appends to a bytearray and uses a shared module.  They
# are the definitions for a Python with the interpreter lock.
FORGOTTEN = ["-D__Pyx_BEGIN_CRITICAL_SECTION(o)={", "-D__Pyx_END_CRITICAL_SECTION()=}"]


def kernels() -> list[Extension]:
    """One extension per module of the compiled rooms, in a fixed order."""
    if os.environ.get("HEADRACE_NO_COMPILE") == "1":
        return []
    extensions = [
        Extension(
            f"{room.replace('/', '.')}.{path.stem}",
            [str(path.relative_to(HERE))],
            extra_compile_args=[*ARGUMENTS, *FORGOTTEN],
        )
        for room in COMPILED
        for path in sorted((HERE / room).glob("*.py"))
        if path.name != "__init__.py"
    ]
    shared = Extension(SHARED, [f"{SHARED.replace('.', '/')}.c"], extra_compile_args=ARGUMENTS)
    return cythonize(
        [*extensions, shared],
        compiler_directives={"language_level": "3"},
        shared_utility_qualified_name=SHARED,
        nthreads=os.cpu_count() or 1,
        quiet=True,
    )


class BuildKernels(build_ext):
    """Says in one line what is missing, instead of the compiler's or Python's own words."""

    def build_extensions(self) -> None:
        """Build them; see ``build_ext``."""
        command = self.compiler.compiler_so[0]
        headers = Path(sysconfig.get_path("include"), "Python.h")
        missing = f"a C compiler ({command})" if shutil.which(command) is None else ""
        missing = missing or ("" if headers.exists() else f"the headers of Python ({headers})")
        if missing:
            raise SystemExit(
                f"error: building headrace needs {missing}, which is not there. Install it (Debian:"
                " apt install gcc libc6-dev python3-dev), or a wheel, which needs no compiler."
            )
        super().build_extensions()


setup(
    ext_modules=kernels(),
    cmdclass={"build_ext": BuildKernels},
    # As many at once as there are processors; `build_ext --parallel N` says otherwise.
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
