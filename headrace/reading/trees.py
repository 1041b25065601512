"""sqlglot's syntax tree of a query as plain nodes: kind, position and children."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

POSTGRES: Final = "postgres"
NODES_MAX: Final = 20_000
"""Maximum number of nodes in a tree that is shown."""
_LEAVES: Final = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Star, exp.DataType),
    *(exp.Var, exp.Placeholder, exp.Parameter),
)
"""Classes that are shown as one node, without their children."""
_NAMED: Final = (exp.Alias, exp.CTE, exp.Subquery, exp.TableAlias, exp.Anonymous, exp.Window)

Plain = dict[str, Any]


class Unsaid(Exception):
    """A text cannot be parsed, or translated to Postgres' SQL; ``at``: position from 0, or None."""

    def __init__(self, message: str, at: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.at, self.hint = message, at, hint


def parsed(text: str, dialect: str) -> exp.Expr:
    """Return the only statement of ``text``.

    Raises:
        Unsaid: there is none, or more than one, or sqlglot cannot parse it.
    """
    rules = Dialect.get_or_raise(dialect)
    try:
        found = [one for one in rules.parse(text) if one is not None]
    except ParseError as error:
        raise Unsaid(_said(error), _place(text, error)) from error
    except TokenError as error:
        raise Unsaid("a token of the text has no end, or cannot be read") from error
    if len(found) != 1:
        raise Unsaid(f"the text has {len(found)} statements, and must have one")
    if isinstance(found[0], exp.Command):
        raise Unsaid("the parser does not know this statement", 0)
    return found[0]


def _said(error: ParseError) -> str:
    said = str((error.errors or [{}])[0].get("description") or "it cannot be read")
    near = str((error.errors or [{}])[0].get("highlight") or "")
    said = said.split(" but got <Token")[0].rstrip(".")
    return f"{said[:1].lower()}{said[1:]}" + (f' at or near "{near[:60]}"' if near else "")


def _place(text: str, error: ParseError) -> int | None:
    """Find where the parser stopped, from the text around it and its line; None: not found."""
    found = (error.errors or [{}])[0]
    before, mark = found.get("start_context") or "", found.get("highlight") or ""
    around = before + mark + (found.get("end_context") or "")
    at = text.find(around)
    while at >= 0:
        place = at + len(before)
        if text.count("\n", 0, place + len(mark)) + 1 == found.get("line"):
            return place
        at = text.find(around, at + 1)
    return None


def position(node: exp.Expr) -> int | None:
    """Return the position of the first token of ``node`` from 0; None: not known."""
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    return min(starts, default=None)


def nearest(node: exp.Expr) -> int | None:
    """Return the position from 0 of ``node``, or else of its nearest ancestor that has one."""
    at: exp.Expr | None = node
    while at is not None:
        found = position(at)
        if found is not None:
            return found
        at = at.parent
    return None


def plain(tree: exp.Expr, text: str = "") -> list[Plain]:
    """Return the nodes of a tree of ``text``, parents before children.

    Each has ``id``, ``kind``, ``detail``, ``arg`` (its role in the parent), ``at`` (position, from
    0), ``comments``, and ``inputs`` (the ids of its children).  A table also has ``table`` and
    ``alias``, a column ``column`` and ``of`` (its table).

    The planner's front also needs ``args``: by argument, the id of a node, a list of ids, or a
    plain value; ``name``, ``columns`` (the alias and its columns); ``called`` (the function's name
    as written).

    Raises:
        Unsaid: there are more than ``NODES_MAX``.
    """
    out: list[Plain] = []
    waiting: list[tuple[exp.Expr, Plain | None]] = [(tree, None)]
    while waiting:
        node, above = waiting.pop()
        if len(out) == NODES_MAX:
            raise Unsaid(f"the text has more than {NODES_MAX} nodes, and is not shown as a tree")
        made = _node(node, str(len(out) + 1))
        made |= _structure(node, text)
        out.append(made)
        if above is not None:
            above["inputs"].append(made["id"])
            _put(above["args"], node, made["id"])
        if not isinstance(node, _LEAVES):
            waiting += [(below, made) for below in reversed(list(_inside(node)))]
    _spread(out)
    return out


def _structure(node: exp.Expr, text: str) -> Plain:
    """Return the facts of a node that the planner's front reads."""
    args = {k.rstrip("_"): v for k, v in node.args.items() if _is_plain(v)}
    made: Plain = {"args": args}
    alias = node.args.get("alias")
    if isinstance(alias, exp.TableAlias):
        made["name"] = _folded(alias.this)
        made["columns"] = [
            _folded(c.this if isinstance(c, exp.ColumnDef) else c) for c in alias.columns
        ]
    elif isinstance(alias, exp.Identifier):
        made["name"] = _folded(alias)
    elif isinstance(node, exp.Identifier):
        made["name"] = _folded(node)
    if isinstance(node, exp.Table | exp.Column):
        made["parts"] = [_folded(part) for part in node.parts]
    if isinstance(node, exp.Func) and "start" in node.meta:
        made["called"] = text[node.meta["start"] : node.meta["end"] + 1]
    return made


def _is_plain(value: object) -> bool:
    return isinstance(value, str | bool | int) and value is not False


def _put(args: Plain, node: exp.Expr, name: str) -> None:
    """Enter a child into the arguments of its parent."""
    key = (node.arg_key or "").rstrip("_")
    if node.index is None:
        args[key] = name
    else:
        args.setdefault(key, []).append(name)


def _inside(node: exp.Expr) -> Iterator[exp.Expr]:
    for below in node.iter_expressions():
        name = isinstance(below, exp.Identifier | exp.TableAlias)
        if not (name and isinstance(node, exp.Table | exp.Alias | exp.Subquery | exp.Anonymous)):
            yield below


def _node(node: exp.Expr, name: str) -> Plain:
    made: Plain = {"id": name, "kind": type(node).__name__, "detail": _detail(node), "inputs": []}
    if node.arg_key:
        made["arg"] = node.arg_key.rstrip("_")
    if node.comments:
        made["comments"] = [comment.strip() for comment in node.comments]
    start = node.meta.get("start")
    if start is None and isinstance(node, (*_LEAVES, exp.Table)):
        start = position(node)
    if start is not None:
        made["at"] = start
    if isinstance(node, exp.Table):
        made |= {"table": _folded(node.this), "alias": node.alias_or_name}
        made["alias"] = _folded(node.args["alias"].this) if node.alias else made["table"]
    if isinstance(node, exp.Column):
        made |= {"column": _folded(node.this), "of": _folded(node.args.get("table"))}
    return made


def _detail(node: exp.Expr) -> str:
    if isinstance(node, exp.Table):
        # Without joins and samples, which are separate nodes.
        name = ".".join(map(_leaf, node.parts))
        return f"{name} AS {node.alias}" if node.alias else name
    if isinstance(node, _LEAVES):
        return _leaf(node)
    if isinstance(node, exp.Join):
        return " ".join(filter(None, (node.method, node.side, node.kind)))
    return node.alias_or_name if isinstance(node, _NAMED) else ""


def _leaf(node: exp.Expr) -> str:
    """Return the text of a leaf; sqlglot's generator takes a hundred times as long."""
    if isinstance(node, exp.Identifier):
        name = str(node.this)
        return '"' + name.replace('"', '""') + '"' if node.quoted else name
    if isinstance(node, exp.Column):
        return ".".join(map(_leaf, node.parts))
    if isinstance(node, exp.Literal):
        text = str(node.this)
        return "'" + text.replace("'", "''") + "'" if node.is_string else text
    return node.sql(POSTGRES, comments=False)


def _folded(name: exp.Expr | None) -> str:
    """Return the name as Postgres folds it: lower case unless quoted."""
    if not isinstance(name, exp.Identifier):
        return "" if name is None else name.name
    text = str(name.this)
    return text if name.quoted else text.lower()


def _spread(nodes: list[Plain]) -> None:
    """Give a node without a position that of its first child."""
    by_id = {node["id"]: node for node in nodes}
    for node in reversed(nodes):
        starts = [by_id[i]["at"] for i in node["inputs"] if "at" in by_id[i]]
        if "at" not in node and starts:
            node["at"] = min(starts)
