"""An engine in the test's process, so that tests can reach its internals."""

from __future__ import annotations

from tests.runtime.conftest import source as source
from tests.runtime.conftest import start as start
