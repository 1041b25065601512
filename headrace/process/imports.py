"""What our processes do not load.

Arrow imports pandas by itself at the first conversion of a Python object, to recognise pandas'
own; that takes 0.3 to 1 s, which a view's first batch, or the first ``create_view``, would wait
for.  We never hand it such objects, so it is told beforehand that there is none.
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
    """Says that pandas is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib``."""
        if fullname == _PANDAS:
            raise ModuleNotFoundError("left out", name=fullname)
        return None


def keep_pandas_out() -> None:
    """Have Arrow decide now, and for good, that there is no pandas.

    Only Arrow: Spark, which needs it, imports it later as usual.
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
