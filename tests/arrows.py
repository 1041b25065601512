"""Import graph of a tree of modules, read from the source text; nothing is imported.

Imports inside functions and under ``TYPE_CHECKING`` count like any other: a reader of the file has
to know the modules that it names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import limits

Graph = Mapping[str, frozenset[str]]
"""Module -> the modules of the same package that it imports."""


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a file below ``root``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, also of those inside functions."""
    for node in limits.nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)


def graph(package: Path) -> Graph:
    """Return the import graph of a package; ``from a import b`` leads to the module ``a.b`` if
    there is one, else to ``a``."""
    root = package.parent
    files = {module_name(path, root): path for path in package.rglob("*.py")}
    found = {}
    for name, path in files.items():
        out = set()
        for node in limits.nodes(limits.tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                leaves = [f"{node.module}.{alias.name}" for alias in node.names]
                out |= {n if n in files else node.module for n in leaves}
            elif isinstance(node, ast.Import):
                out |= {alias.name for alias in node.names}
        found[name] = frozenset((out & files.keys()) - {name})
    return found


def circles(arrows: Graph) -> list[list[str]]:
    """Return the groups of modules that import one another (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out = []

    def visit(at: str) -> None:
        index[at] = low[at] = len(index)
        stack.append(at)
        for other in sorted(arrows.get(at, ())):
            if other not in index:
                visit(other)
                low[at] = min(low[at], low[other])
            elif other in stack:
                low[at] = min(low[at], index[other])
        if low[at] == index[at]:
            group = stack[stack.index(at) :]
            del stack[stack.index(at) :]
            if len(group) > 1:
                out.append(sorted(group))

    for name in sorted(arrows):
        if name not in index:
            visit(name)
    return sorted(out)


def between(arrows: Graph, place: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the arrows between places; modules without a place do not count."""
    out: dict[str, set[str]] = {name: set() for name in place.values()}
    for source, targets in arrows.items():
        for target in targets:
            if source in place and target in place and place[source] != place[target]:
                out[place[source]].add(place[target])
    return out
