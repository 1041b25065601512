"""sqlglot's syntax tree as the reading process sends it (``reading.trees.plain``), as nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_NAMES: Final = ("Identifier", "TableAlias", "Paren", "DataType", "DataTypeParam", "ColumnDef")
"""Classes of nodes that stand for nothing in Postgres' tree."""


class Different(Exception):
    """The tree differs from Postgres' at ``at`` (position in the text from 0), or has no equal."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.message, self.at = message, at


@dataclass(slots=True, eq=False)
class Ast:
    """A node: its class, position and arguments."""

    id: str
    kind: str
    at: int | None
    data: Mapping[str, Any]
    args: dict[str, Any] = field(default_factory=dict)

    def node(self, name: str) -> Ast | None:
        """Return the argument called ``name`` if it is a node."""
        found = self.args.get(name)
        return found if isinstance(found, Ast) else None

    def child(self, name: str) -> Ast:
        """Return the argument called ``name``, which must be a node."""
        found = self.args.get(name)
        if not isinstance(found, Ast):
            raise Different(f"{self.kind} has no {name}", self.at)
        return found

    def nodes(self, name: str) -> list[Ast]:
        """Return the nodes of the list called ``name``; empty if there is none."""
        found = self.args.get(name)
        return found if isinstance(found, list) else []

    def under(self, name: str) -> list[Ast]:
        """Return the nodes of an argument, be it one or a list."""
        found = self.args.get(name)
        return [found] if isinstance(found, Ast) else self.nodes(name)

    def text(self, name: str) -> str:
        """Return the plain value called ``name`` as a text; empty if there is none."""
        found = self.args.get(name)
        return "" if not found or isinstance(found, Ast | list) else str(found)

    def fact(self, name: str) -> str:
        """Return a fact that the reading process has found, such as ``name``."""
        return str(self.data.get(name) or "")

    def inputs(self) -> Iterator[Ast]:
        """Yield the children, in the order of the arguments."""
        for value in self.args.values():
            if isinstance(value, Ast):
                yield value
            elif isinstance(value, list):
                yield from value

    def walk(self) -> Iterator[Ast]:
        """Yield this node and all nodes below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.inputs()

    @property
    def is_name(self) -> bool:
        """Whether the node stands for nothing in Postgres' tree."""
        return self.kind in _NAMES

    def replaced(self, **args: Any) -> Ast:
        """Return a copy with other arguments."""
        return Ast(self.id, self.kind, self.at, self.data, {**self.args, **args})


def tree(nodes: Sequence[Mapping[str, Any]]) -> Ast:
    """Return the root of a tree."""
    made = {n["id"]: Ast(n["id"], n["kind"], n.get("at"), n) for n in nodes}
    for node in made.values():
        below = set(node.data["inputs"])
        for name, value in node.data["args"].items():
            if isinstance(value, list):
                node.args[name] = [made[one] for one in value]
            elif isinstance(value, str) and value in below and made[value].data.get("arg") == name:
                node.args[name] = made[value]
            else:
                node.args[name] = value
    return made[nodes[0]["id"]]


def bare(node: Ast) -> Ast:
    """Return the node inside of parentheses."""
    while node.kind == "Paren":
        node = node.child("this")
    return node
