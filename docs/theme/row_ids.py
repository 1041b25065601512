"""Hook of mkdocs: give each table row that begins with code an id, so that it can be linked.

The id is "row-" and the first code of the row; a second row with the same code has none.
"""

from __future__ import annotations

import html
import re
from typing import Any

_ROW = re.compile(r"<tr>\n<td><code>(.*?)</code>")


def on_page_content(text: str, **_: Any) -> str:
    """Return the page with ids."""
    seen: set[str] = set()

    def named(found: re.Match[str]) -> str:
        words = re.findall(r"[a-z0-9]+", html.unescape(found[1]).lower())
        row = "-".join(["row", *words])
        if not words or row in seen:
            return found[0]
        seen.add(row)
        return found[0].replace("<tr>", f'<tr id="{row}">', 1)

    return _ROW.sub(named, text)
