"""The process that parses queries: requests on standard input, answers on output, in frames.

    {"do": "tree" | "parse" | "tables" | "translate", "text": …, "dialect": …, "columns": …}
    {"tree": […], "text": …} | {"tree": […]} | {"tables": […]} | {"text": …}
    | {"refused": message, "at": …, "hint": …}

It may be killed at any time.  It exits when its parent is gone, or when a request exceeds its limit
of processor time or memory.
"""

from __future__ import annotations

import resource
import sys
from typing import Any, Final

import msgspec

from headrace.process.subprocess_pool import read_frame, write_frame
from headrace.reading.dialects import tables, tidy, translated
from headrace.reading.trees import POSTGRES, Unsaid, parsed, plain

CPU_S: Final = 5
"""Processor time for a request, in seconds."""
MEMORY_BYTES: Final = 1 << 30
"""Limit of the address space."""
DEPTH: Final = 3_000
"""Recursion limit: ten frames for a nesting level of a query, half a kB each on the heap."""
_TOO_DEEP: Final = "the text is nested too deeply"
_TOO_LARGE: Final = "the text takes too much memory"


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request."""
    text, dialect = str(asked["text"]), str(asked.get("dialect") or POSTGRES)
    try:
        if asked["do"] == "translate":
            return {"text": translated(text, dialect, asked["columns"])}
        if asked["do"] == "tables":
            return {"tables": tables(text, dialect)}
        tree = parsed(text, dialect)
        if asked["do"] == "parse":
            return {"tree": plain(tree, text)}
        return {"tree": plain(tree, text), "text": tidy(tree)}
    except Unsaid as refused:
        return {"refused": refused.message, "at": refused.at, "hint": refused.hint}
    except RecursionError:
        return {"refused": _TOO_DEEP}
    except MemoryError:
        return {"refused": _TOO_LARGE}
    except Exception as error:  # noqa: BLE001  a parser of many dialects, on hostile text
        return {"refused": f"the parser failed: {type(error).__name__}"}


def _more_time() -> None:
    """Raise the CPU limit by ``CPU_S`` for the next request; limits are whole seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + CPU_S, most))


def main() -> int:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(DEPTH)
    asked, answers = sys.stdin.fileno(), sys.stdout.fileno()
    while (frame := read_frame(asked)) is not None:
        _more_time()
        write_frame(answers, msgspec.json.encode(answer(msgspec.json.decode(frame))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
