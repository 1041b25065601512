"""Refuses unsupported constructs, found in Postgres' own parse tree.

Because the tree is checked, a keyword inside a string, a view or an alias cannot hide or fake a
construct.  The text serves only to find the position of the construct.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Final

from headrace.errors import UnsupportedError
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.position import Text
from headrace.types import DATE, TIMESTAMP, TIMESTAMPTZ

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
_ERA: Final = "bc"
"""Word with which ``'today bc'`` denotes a day of another millennium."""
_MARGIN_S: Final = 3 * 86_400
"""More than the distance of ``yesterday`` and ``tomorrow``, read in any time zone, from now."""
_YEAR_2000_S: Final = 946_684_800
"""Epoch of Postgres' times, in Unix time."""
_UNITS: Final = {DATE: 86_400.0, TIMESTAMP: 1e-6, TIMESTAMPTZ: 1e-6}
"""Seconds in a unit of the stored value."""

Literal = tuple[int, str, bool]
"""(1-based position, value, whether the value is certain)."""


def refuse_clock_literals(
    tree: Node,
    text: Text,
    locate: Callable[[int], int | None],
    reads_clock: Callable[[int], bool],
    now: Callable[[], float],
) -> None:
    """Refuse literals such as ``'today'::date``: Postgres has replaced them by the current time.

    Every constant whose input may read the clock (``reads_clock`` of its type: also arrays,
    ranges and composites) is traced to its literal in the text.  If the server keeps no
    locations, one literal with such a word anywhere in the text is enough, unless the constant's
    value is far from ``now`` (the server's Unix time in seconds).
    """
    literals, now = text.literals(), functools.cache(now)
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
        suspects = [item for item in mine if _is_suspect(item)]
        if not suspects:
            continue
        if place is None and not any(map(_may_be_far, suspects)) and _is_far(node, now):
            continue
        raise UnsupportedError(
            "a date or time literal that stands for the current time is not supported",
            # One with such a word, if there is one.
            position=min((not certain, at) for at, _, certain in suspects)[1],
        )


def _words(literal: Literal) -> set[str]:
    return set(_WORD.findall(literal[1].lower()))


def _is_suspect(literal: Literal) -> bool:
    """Return whether a literal may stand for the current time."""
    return not literal[2] or bool(_CLOCK_WORDS & _words(literal))


def _may_be_far(literal: Literal) -> bool:
    """Return whether a suspect may denote a time that is far from now."""
    return not literal[2] or _ERA in _words(literal)


def _is_far(constant: Node, now: Callable[[], float]) -> bool:
    """Return whether a constant is a time that no suspect near ``now`` can denote."""
    unit = _UNITS.get(constant.number("consttype"))
    value = constant.fields.get("constvalue")
    if unit is None or not isinstance(value, bytes):
        return False
    size = 4 if unit > 1 else 8
    at = int.from_bytes(value[:size], "little", signed=True) * unit
    return abs(at + _YEAR_2000_S - now()) > _MARGIN_S
