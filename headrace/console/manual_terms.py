"""Places in the manual that the console links: settings, calls, events, messages.

They are read from the built pages, so every link leads somewhere.  Without a built manual there
are none.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ROW: Final = re.compile(r'<tr id="(?P<id>[^"]+)">\n<td>(?P<first>.*?)</td>')
_CODE: Final = re.compile(r"<code>(.*?)</code>")
_CALL: Final = re.compile(r'<h3 id="(?P<id>[^"]+)">(?P<names>[a-z_, ]+)</h3>')
_MESSAGES: Final = ("manual/troubleshooting.html", "manual/monitoring.html")
_MESSAGE_MIN: Final = 8
"""Characters that a message has at least; shorter texts occur in others."""


def terms(pages: Mapping[str, str]) -> dict[str, Any]:
    """Return the addresses of all terms, by path in the manual; ``pages``: HTML by path."""
    calls = {
        name.strip(): f"manual/reference.html#{found['id']}"
        for found in _CALL.finditer(pages.get("manual/reference.html", ""))
        for name in found["names"].split(",")
    }
    messages = [row for path in _MESSAGES for row in _rows(pages, path)]
    return {
        "settings": dict(_rows(pages, "manual/settings.html")),
        "calls": calls,
        "events": dict(_rows(pages, "manual/events.html")),
        # The longest first, so that the most specific text is found.
        "messages": sorted(
            (row for row in messages if " " in row[0] and len(row[0]) >= _MESSAGE_MIN),
            key=lambda row: -len(row[0]),
        ),
    }


def _rows(pages: Mapping[str, str], path: str) -> Iterator[tuple[str, str]]:
    """Yield each code in the first column of a page's tables, with its address."""
    for row in _ROW.finditer(pages.get(path, "")):
        for code in _CODE.findall(row["first"]):
            yield html.unescape(code), f"{path}#{row['id']}"
