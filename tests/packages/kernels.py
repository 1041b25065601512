"""Check that every kernel of the installed package is compiled; run by the wheels' build.

No other test would notice a missing kernel: all but one also work uncompiled, a hundred times
slower.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import pkgutil
import sys
from types import ModuleType


def compiled(package: ModuleType) -> list[str]:
    """Return the modules of a package; raise SystemExit if one is not compiled."""
    names = [f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]
    for name in names:
        file = importlib.import_module(name).__file__ or ""
        if not file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
            raise SystemExit(f"{name} is not compiled: {file}")
    return names


def main() -> None:
    """Check both packages of kernels."""
    found = [
        name
        for package in ("headrace.kernels", "headrace.state.map")
        for name in compiled(importlib.import_module(package))
    ]
    sys.stdout.write(f"{len(found)} kernels\n")


if __name__ == "__main__":
    main()
