"""Sizes of the thread pools.  Each exists once, however many views there are (E-15)."""

from __future__ import annotations

import os
from typing import Final

_PROCESSORS: Final = max(2, os.cpu_count() or 2)

BATCHES: Final = _PROCESSORS
"""Threads of a worker on which views process batches."""
ROCKSDB: Final = _PROCESSORS
"""Threads of RocksDB that flush and compact; its own default is 2, however many processors."""
CALLS: Final = 64
"""Limit of the builder's threads: a call has one while it computes, or waits for Postgres."""
