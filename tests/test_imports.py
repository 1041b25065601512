"""Modules that our processes load, and modules that they must not load."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    """Return the output of ``program`` in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_first_conversion_does_not_import_pandas() -> None:
    """Importing pandas would stall a view's first batch for up to a second."""
    printed = run("""
import sys
import numpy, pyarrow
from headrace.process import imports
imports.keep_pandas_out()
pyarrow.array([b"a"]); pyarrow.array(numpy.arange(3)); pyarrow.table({"a": [1]}).to_pylist()
print("pandas" in sys.modules)
import pandas
print(pandas.Series([1]).sum(), pyarrow.array([1, None]).to_pylist())
""")
    assert printed == "False\n1 [1, None]"


def test_processes_start_without_spark_and_pandas() -> None:
    printed = run("""
import sys
import headrace.views.builder, headrace.runtime.worker, headrace.server.main
print(sorted({name.partition(".")[0] for name in sys.modules} & {"pandas", "pyspark", "py4j", "rich", "uvicorn", "starlette"}))
""")
    assert printed == "[]"
