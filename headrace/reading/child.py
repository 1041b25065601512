"""The process that reads: questions come on its standard input, a line each, and answers go out.

    {"do": "tree" | "tables" | "translate", "text": …, "dialect": …, "columns": …}
    {"tree": […], "text": …} | {"tables": […]} | {"text": …}
    | {"refused": message, "at": …, "hint": …}

It may be ended at any moment, and ends by itself when nobody asks for a while, when who asks is
gone, or when a question takes more processor time or memory than it may.
"""

from __future__ import annotations

import resource
import select
import sys
from typing import Any, Final

import msgspec

from headrace.reading.dialects import tables, tidy, translated
from headrace.reading.trees import POSTGRES, Unsaid, parsed, plain

CPU_S: Final = 5
"""Seconds of processor time for a question."""
MEMORY_BYTES: Final = 1 << 30
"""Of address space."""
IDLE_S: Final = 60.0
"""Seconds after which nobody is expected to ask."""
DEPTH: Final = 3_000
"""Frames: about a tenth of them levels of a query.  They are on the heap, each of half a kB."""
_TOO_DEEP: Final = "the text is nested too deeply"
_TOO_LARGE: Final = "the text takes too much memory"


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question."""
    text, dialect = str(asked["text"]), str(asked.get("dialect") or POSTGRES)
    try:
        if asked["do"] == "translate":
            return {"text": translated(text, dialect, asked["columns"])}
        if asked["do"] == "tables":
            return {"tables": tables(text, dialect)}
        tree = parsed(text, dialect)
        return {"tree": plain(tree), "text": tidy(tree)}
    except Unsaid as refused:
        return {"refused": refused.message, "at": refused.at, "hint": refused.hint}
    except RecursionError:
        return {"refused": _TOO_DEEP}
    except MemoryError:
        return {"refused": _TOO_LARGE}
    except Exception as error:  # noqa: BLE001  a parser of many dialects, on hostile text
        return {"refused": f"the parser failed: {type(error).__name__}"}


def _more_time() -> None:
    """The next question may take so much, of whole seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + CPU_S, most))


def main() -> int:
    """Answer until nobody asks."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(DEPTH)
    asked = sys.stdin.buffer
    while True:
        ready, _, _ = select.select((asked,), (), (), IDLE_S)
        line = asked.readline() if ready else b""
        if not line:
            return 0
        _more_time()
        said = msgspec.json.encode(answer(msgspec.json.decode(line)))
        sys.stdout.buffer.write(said + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
