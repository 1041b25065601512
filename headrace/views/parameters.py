"""A view for a statement with parameters, keyed by the columns compared with them.

    SELECT a, sum(b) FROM t WHERE k = $1 AND c > 5 GROUP BY a
    view:  SELECT a, sum(b), k FROM t WHERE c > 5 GROUP BY a, k
    read:  SELECT … FROM view WHERE k = $1

Reading the view gives the same rows as the statement, for every value of its parameters:

* Without grouping and DISTINCT, any condition over the selected columns may be applied later,
  because selection and projection commute.
* With groups or DISTINCT, an equality of a column with a parameter holds for all rows of a
  group by that column or for none. So the column becomes a group key. Without GROUP BY this is
  wrong: the statement has one row even over no rows.

Any other statement is refused with the reason (``NotAView``). The text is only split into tokens;
Postgres gives them their meaning, because it plans every suggestion before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from headrace.errors import UnsupportedError
from headrace.postgres.tokens import Unreadable, name, scan

_STEPS_MAX: Final = 4_000
_CLAUSES: Final = frozenset(
    (
        *("from", "where", "group", "having", "window", "order", "limit", "offset", "fetch"),
        *("for", "union", "intersect", "except", "into"),
    )
)
_CLOSES: Final = {")": "(", "]": "[", "end": "case"}
_OPENS: Final = frozenset(_CLOSES.values())
_COMPARED: Final = frozenset(("=", "<", ">", "<=", ">=", "<>", "!="))
_PUT_BACK: Final = (
    "Its constants were taken out as well: put them back, and ask headrace.advise(query)."
)
_REFUSED: Final = {
    "limit": "it has LIMIT: the first rows of each value of a parameter are no plain view",
    "offset": "it has OFFSET",
    "fetch": "it has FETCH FIRST",
    "for": "it locks rows",
    "union": "parameters are in a part of UNION",
    "intersect": "parameters are in a part of INTERSECT",
    "except": "parameters are in a part of EXCEPT",
    "into": "it makes a table",
    "window": "it has a window, which sees rows of all values",
}


class NotAView(UnsupportedError):
    """A statement that no view can answer as it is; the message has the reason."""


class NoTable(NotAView):
    """A statement that reads no table."""


class SqlToken(NamedTuple):
    """A token: kind, normalised value (words in lower case), position and nesting depth."""

    kind: str
    value: str
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class Suggested:
    """A view, and the condition for reading the statement's rows from it."""

    query: str
    condition: str
    """A condition on the view's columns with the statement's parameters; "": all rows."""
    keys: tuple[str, ...]
    """The view's columns in the condition, as written."""
    grouped: bool = False
    """Whether the condition relies on the equality operator of the columns' own types."""
    ordered: bool = False
    """Whether the statement has an ORDER BY, which rows of a table do not keep."""


def suggested(text: str) -> Suggested:
    """Return the view for a statement.

    Raises:
        NotAView: no view provably gives the same rows.
    """
    words = _words(text)
    if not words:
        raise NotAView("it is empty")
    if not any(w.kind == "parameter" for w in words):
        return Suggested(text[words[0].start : words[-1].end], "", ())
    if words[0].value != "select":
        raise NotAView("it has parameters and is more than one SELECT", hint=_PUT_BACK)
    if any(w.kind == "word" and w.value == "over" for w in words):
        raise NotAView(_REFUSED["window"], hint=_PUT_BACK)
    clauses = _clauses(words)
    for clause, why in _REFUSED.items():
        if clause in clauses:
            raise NotAView(why, hint=_PUT_BACK)
    for clause, part in clauses.items():
        if clause != "where" and any(w.kind == "parameter" for w in part):
            where = "the select list" if clause == "select" else clause.upper()
            raise NotAView(f"it has a parameter in {where}", hint=_PUT_BACK)
    return _Statement(text, clauses).suggested()


def words(text: str) -> list[str]:
    """Return the unquoted words of a statement, in order.

    Raises:
        NotAView: the text cannot be split into tokens.
    """
    return [word.value for word in _words(text) if word.kind == "word"]


def spelled(key: str) -> str:
    """Return a key in the normalised form in which names are compared."""
    return name(key)


def _words(text: str) -> list[SqlToken]:
    out: list[SqlToken] = []
    open_: list[str] = []
    try:
        for kind, start, end in scan(text, steps=_STEPS_MAX):
            value = text[start:end]
            shown = name(value) if kind in ("word", "quoted") else value
            # After AS or a dot, any word is a name.
            word = shown if kind == "word" and (not out or out[-1].value not in ("as", ".")) else ""
            sign = value if kind == "symbol" else word
            opener = _CLOSES.get(sign)
            if opener is not None and (not open_ or open_.pop() != opener):
                raise NotAView("its parentheses cannot be matched")
            out.append(SqlToken(kind, shown, start, end, len(open_)))
            if sign in _OPENS:
                open_.append(sign)
    except Unreadable:
        raise NotAView("it cannot be read, or is too long") from None
    if open_:
        raise NotAView("its parentheses cannot be matched")
    while out and out[-1].value == ";":
        out.pop()
    if any(w.value == ";" and w.kind == "symbol" for w in out):
        raise NotAView("it is more than one statement")
    return out


def _clauses(words: Sequence[SqlToken]) -> dict[str, list[SqlToken]]:
    """Return the tokens of each clause, without its keyword (BY is included)."""
    out: dict[str, list[SqlToken]] = {"select": []}
    now = "select"
    for at, word in enumerate(words[1:], 1):
        begins = (
            word.depth == 0
            and word.kind == "word"
            and word.value in _CLAUSES
            # A word after AS or a dot is a name; and FROM may belong to IS DISTINCT FROM.
            and words[at - 1].value not in ("as", ".")
            and not (word.value == "from" and words[at - 1].value == "distinct")
        )
        if not begins:
            out[now].append(word)
            continue
        if word.value in out:
            raise NotAView("its clauses cannot be separated")
        now = word.value
        out[now] = []
    return out


class _Statement:
    """One SELECT with parameters only in WHERE."""

    def __init__(self, text: str, clauses: dict[str, list[SqlToken]]) -> None:
        self._text = text
        self._clauses = clauses
        self._grouped = "group" in clauses or "having" in clauses
        self._distinct = self._starts(clauses["select"], "distinct")

    def suggested(self) -> Suggested:
        kept, moved = self._conditions()
        exact = self._grouped or self._distinct
        columns = [column for part in moved for column in [self._column(part, exact=exact)]]
        names = self._named()
        more: list[str] = []
        conditions = []
        keys = []
        for part, column in zip(moved, columns, strict=True):
            key = self._key(column, names, more)
            keys.append(key)
            conditions.append(self._moved(part, column, key))
        text = self._query(kept, columns, more)
        return Suggested(
            text,
            " AND ".join(conditions),
            tuple(dict.fromkeys(keys)),
            exact,
            ordered="order" in self._clauses,
        )

    # --- conditions

    def _conditions(self) -> tuple[list[list[SqlToken]], list[list[SqlToken]]]:
        """Split WHERE into conjuncts without parameters and those with some."""
        kept: list[list[SqlToken]] = []
        moved: list[list[SqlToken]] = []
        for part in _conjuncts(self._clauses["where"]):
            (moved if any(w.kind == "parameter" for w in part) else kept).append(part)
        return kept, moved

    def _column(self, part: list[SqlToken], *, exact: bool) -> list[SqlToken]:
        columns = _name_at(part, 0)
        rest = part[len(columns) :]
        if columns and rest and _is_test(rest, exact=exact):
            return columns
        # The parameter may come first: $1 = k.
        values = _values(part)
        if values < len(part) and part[values].value == "=" and part[0].kind == "parameter":
            columns = _name_at(part, values + 1)
            if columns and values + 1 + len(columns) == len(part):
                return columns
        what = "an equality of a column with a parameter" if exact else "a comparison with a column"
        shown = self._source(part)
        raise NotAView(f"{shown} is not {what}", hint=_PUT_BACK)

    def _moved(self, part: list[SqlToken], column: list[SqlToken], key: str) -> str:
        """Return a condition with the statement's column replaced by the view's."""
        first, last = column[0].start, column[-1].end
        return self._text[part[0].start : first] + key + self._text[last : part[-1].end]

    # --- names

    def _named(self) -> dict[tuple[str, ...], str]:
        """Return the names that plainly selected columns have in the select list."""
        out: dict[tuple[str, ...], str] = {}
        for item in _split(self._clauses["select"], ","):
            begin = 1 if item and item[0].value in ("distinct", "all") else 0
            column = _name_at(item, begin)
            rest = item[begin + len(column) :]
            if not column:
                continue
            named = len(rest) == 1 or (len(rest) == 2 and rest[0].value == "as")
            if not rest:
                out[_spelled(column)] = self._source(column[-1:])
            elif named and rest[-1].kind in ("word", "quoted"):
                out[_spelled(column)] = self._source(rest[-1:])
        return out

    def _key(
        self, column: list[SqlToken], names: dict[tuple[str, ...], str], more: list[str]
    ) -> str:
        """Return the name of a column in the view; add it to the select list if missing."""
        spelled = _spelled(column)
        if spelled in names:
            return names[spelled]
        last = self._source(column[-1:])
        if self._is_whole_table():
            return last
        taken = {name(each) for each in names.values()}
        if name(last) in taken:
            last = '"' + (name(last) + "_key").replace('"', '""') + '"'
        names[spelled] = last
        more.append(f"{self._source(column)} AS {last}")
        return last

    def _is_whole_table(self) -> bool:
        """Return whether the statement is SELECT * FROM one table, which keeps all column names."""
        listed = [w.value for w in self._clauses["select"]]
        table = self._clauses.get("from", [])
        plain = _name_at(table, 0)
        rest = table[len(plain) :]
        alias = len(rest) == 1 or (len(rest) == 2 and rest[0].value == "as")
        return listed == ["*"] and bool(plain) and (not rest or alias)

    # --- the text

    def _query(
        self, kept: list[list[SqlToken]], columns: list[list[SqlToken]], more: list[str]
    ) -> str:
        clauses = self._clauses
        select = self._source(clauses["select"])
        out = ["SELECT " + ", ".join(filter(None, (select, *more)))]
        if "from" not in clauses:
            raise NoTable("it reads no table")
        out.append("FROM " + self._source(clauses["from"]))
        if kept:
            out.append("WHERE " + " AND ".join(self._source(part) for part in kept))
        if self._grouped:
            out.append("GROUP BY " + ", ".join(self._groups(columns)))
        if "having" in clauses:
            out.append("HAVING " + self._source(clauses["having"]))
        return " ".join(out)

    def _groups(self, columns: list[list[SqlToken]]) -> Iterator[str]:
        group = self._clauses.get("group", [])
        if not group or group[0].value != "by":
            raise NotAView(
                "over no rows it returns one row, but a view grouped by the parameter returns none"
            )
        words = {w.value for w in group if w.kind == "word"}
        empty = any(a.value == "(" and b.value == ")" for a, b in pairwise(group))
        if words & {"rollup", "cube", "grouping"} or empty:
            raise NotAView("it has GROUPING SETS, or GROUP BY ()")
        yield self._source(group[1:])
        known = {_spelled(item) for item in _split(group[1:], ",") if item}
        for column in columns:
            if (spelled := _spelled(column)) not in known:
                known.add(spelled)
                yield self._source(column)

    def _starts(self, words: list[SqlToken], first: str) -> bool:
        if not words or words[0].value != first:
            return False
        if len(words) > 1 and words[1].value == "on":
            raise NotAView("it has DISTINCT ON", hint=_PUT_BACK)
        return True

    def _source(self, words: Sequence[SqlToken]) -> str:
        return self._text[words[0].start : words[-1].end] if words else ""


def _conjuncts(words: list[SqlToken]) -> list[list[SqlToken]]:
    """Split a condition at its ANDs, except those of BETWEEN."""
    out: list[list[SqlToken]] = [[]]
    between = False
    for word in words:
        plain = word.depth == 0 and word.kind == "word"
        if plain and word.value == "or":
            raise NotAView("it has OR beside parameters", hint=_PUT_BACK)
        if plain and word.value == "and" and not between:
            out.append([])
            continue
        if plain and word.value in ("between", "and"):
            between = word.value == "between"
        out[-1].append(word)
    return out


def _split(words: Sequence[SqlToken], sign: str) -> list[list[SqlToken]]:
    out: list[list[SqlToken]] = [[]]
    for word in words:
        if word.depth == 0 and word.kind == "symbol" and word.value == sign:
            out.append([])
        else:
            out[-1].append(word)
    return out


def _name_at(words: Sequence[SqlToken], at: int) -> list[SqlToken]:
    """Return the tokens of the name, perhaps qualified, that begins at ``at``."""
    out: list[SqlToken] = []
    while at < len(words) and words[at].kind in ("word", "quoted"):
        out.append(words[at])
        if at + 2 < len(words) and words[at + 1].value == "." and words[at + 2].kind in (
            "word", "quoted",
        ):  # fmt: skip
            out.append(words[at + 1])
            at += 2
        else:
            return out
    return []


def _spelled(column: Sequence[SqlToken]) -> tuple[str, ...]:
    return tuple(word.value for word in column)


def _values(words: Sequence[SqlToken]) -> int:
    """Return how many leading tokens form one parameter, perhaps with a cast."""
    if not words or words[0].kind != "parameter":
        return 0
    if len(words) > 2 and words[1].value == "::" and words[2].kind == "word":
        return 3
    return 1


def _is_test(rest: list[SqlToken], *, exact: bool) -> bool:
    """Return whether ``rest`` compares the column before it with parameters, and nothing else."""
    sign, values = rest[0].value, rest[1:]
    if sign in _COMPARED:
        if values and _values(values) == len(values):
            return sign == "=" or not exact
        # = ANY ($1)
        return sign == "=" and not exact and _is_list(values[1:], values[:1], "any")
    if exact:
        return False
    if sign == "in":
        return _is_list(values, rest[:1], "in")
    if sign == "between":
        first = _values(values)
        last = values[first + 1 :]
        joined = len(values) > first and values[first].value == "and"
        return bool(first) and joined and bool(last) and _values(last) == len(last)
    return False


def _is_list(words: list[SqlToken], before: list[SqlToken], word: str) -> bool:
    """Return whether ``word`` precedes a list of parameters in parentheses."""
    if not before or before[0].value != word or len(words) < 3:
        return False
    if words[0].value != "(" or words[-1].value != ")":
        return False
    inner = [w._replace(depth=w.depth - 1) for w in words[1:-1]]
    return all(part and _values(part) == len(part) for part in _split(inner, ","))
