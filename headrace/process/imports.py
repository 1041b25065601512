"""Keeps pandas from being imported.

Arrow imports pandas at the first conversion of a Python object, to recognise pandas' own types.
That takes 0.3 to 1 s, by which a view's first batch, or the first ``create_view``, would be late.
Headrace never passes such objects to Arrow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

_PANDAS = "pandas"


class _Missing(MetaPathFinder):
    """An import finder that reports pandas as not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _PANDAS:
            raise ModuleNotFoundError("left out", name=fullname)
        return None


def keep_pandas_out() -> None:
    """Have Arrow conclude now, and for good, that pandas is not installed.

    Spark, which needs pandas, imports it later as usual.
    """
    if _PANDAS in sys.modules:
        return
    finder = _Missing()
    sys.meta_path.insert(0, finder)
    try:
        # Arrow looks once, at the first conversion, and remembers.
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
