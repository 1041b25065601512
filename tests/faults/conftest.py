"""The engine in this process, for what is done to it from inside."""

from __future__ import annotations

from tests.runtime.conftest import source as source
from tests.runtime.conftest import start as start
