"""Refuses unsupported constructs, found in Postgres' own parse tree.

Because the tree is checked, a keyword inside a string, a view or an alias cannot hide or fake a
construct.  The text serves only to find the position of the construct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from headrace.errors import UnsupportedError
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.position import Text

Finding = tuple[str, str | None, Node | None]
"""(unsupported construct, pattern of its keyword, node with a location)."""

RELATION, SUBQUERY, JOIN, FUNCTION, TABLE_FUNCTION = 0, 1, 2, 3, 4
VALUES, CTE, NAMED_TUPLES, RESULT, GROUP = 5, 6, 7, 8, 9
"""RTEKind."""
WITH_TIES: Final = ("1", "LIMIT_OPTION_WITH_TIES")
"""``limitOption`` of FETCH FIRST … WITH TIES."""


def _query(node: Node) -> Iterator[Finding]:
    if node.number("commandType") != 1:
        yield ("a statement that modifies data", r"\b(insert|update|delete|merge)\b", None)
    if node.flag("hasForUpdate") or node.nodes("rowMarks"):
        yield ("FOR UPDATE or FOR SHARE", r"\bfor\s+(no\s+key\s+|key\s+)?(update|share)", None)


def _entry(node: Node) -> Iterator[Finding]:
    kind = node.number("rtekind")
    if node.node("tablesample"):
        yield "TABLESAMPLE", r"\btablesample\b", None
    if kind == TABLE_FUNCTION:
        yield "XMLTABLE or JSON_TABLE", r"\b(xmltable|json_table)\b", None
    if kind == NAMED_TUPLES:
        yield "a transition table", None, None


_CHECKS: Final[dict[str, Callable[[Node], Iterator[Finding]]]] = {
    "QUERY": _query,
    "RANGETBLENTRY": _entry,
}


_HINTS: Final = {
    "XMLTABLE or JSON_TABLE": "Use functions in FROM instead, such as unnest(xpath(…)) or"
    " jsonb_path_query(…).",
    "TABLESAMPLE": "TABLESAMPLE may choose other rows each time. Filter by a hash of the key"
    " instead.",
    "FOR UPDATE or FOR SHARE": "Omit it: a view locks no rows.",
}


def refuse_constructs(tree: Node, text: Text, locate: Callable[[int], int | None]) -> None:
    """Raise UnsupportedError for the first construct that cannot be maintained."""
    for node in tree.walk():
        check = _CHECKS.get(node.kind)
        for what, pattern, place in check(node) if check else ():
            found = locate(place.number("location", -1)) if place else None
            if found is None and pattern is not None:
                found = text.find(pattern)
            raise UnsupportedError(
                f"{what} is not supported", position=found, hint=_HINTS.get(what)
            )


_CLOCK_WORDS: Final = frozenset({"now", "today", "tomorrow", "yesterday"})
_WORD: Final = re.compile(r"[a-z]+")


def refuse_clock_literals(
    tree: Node, text: Text, locate: Callable[[int], int | None], reads_clock: Callable[[int], bool]
) -> None:
    """Refuse literals such as ``'today'::date``: Postgres has replaced them by the current time.

    Every constant whose input may read the clock (``reads_clock`` of its type: also arrays,
    ranges and composites) is traced to its literal in the text.  If the server keeps no
    locations, one literal with such a word anywhere in the text is enough.
    """
    literals = text.literals()
    for node in tree.walk():
        if node.kind != "CONST" or node.flag("constisnull"):
            continue
        if not reads_clock(node.number("consttype")):
            continue
        place = locate(node.number("location", -1))
        mine = literals
        if place is not None:
            # The location of ``date 'today'`` is that of its type.
            mine = [item for item in literals if item[0] >= place][:1]
        for found, value, certain in mine:
            if not certain or _CLOCK_WORDS & set(_WORD.findall(value.lower())):
                raise UnsupportedError(
                    "a date or time literal that stands for the current time is not supported",
                    position=found,
                )
