"""The planner's front: from sqlglot's tree and Postgres' to the query that is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import BugError
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import same
from headrace.planner.front.forms import CALL, FORMS
from headrace.planner.front.names import Names
from headrace.planner.front.queries import query
from headrace.planner.front.syntax import Ast, Different, tree
from headrace.planner.front.walk import Walk

_STEPS_PER_NODE: Final = 50
"""Attempts for each node of the syntax tree: a query that fits takes less than one, and planning
takes longer than 50 for each."""


@dataclass(frozen=True, slots=True)
class Composed:
    """The query as composed from sqlglot's tree, and how both trees are bound to each other."""

    tree: Tree | None
    """None: the trees differ."""
    root: Ast
    walk: Walk
    differs: str = ""
    at: int | None = None
    """Position of the difference in the text, from 0."""


def compose(nodes: Sequence[Mapping[str, Any]], analysed: Tree, names: Names) -> Composed:
    """Compose the query that ``nodes`` (``reading.trees.plain``) are the syntax tree of."""
    root = tree(nodes)
    walk = Walk(names, FORMS, CALL, query, _STEPS_PER_NODE * len(nodes))
    try:
        made = query(walk, root, analysed, None)
        for node in root.walk():
            if not walk.has_read(node) and not node.is_name:
                raise Different(f"{node.kind} is not compared", node.at)
        if not same(made, analysed):
            raise Different("the query is composed otherwise")
    except Different as found:
        return Composed(None, root, walk, found.message, found.at)
    except (BugError, LookupError, TypeError, ValueError, AssertionError) as error:
        # Both trees are of other programs: a form that was not foreseen must not end planning.
        return Composed(None, root, walk, f"the comparison failed: {type(error).__name__}")
    except RecursionError:
        return Composed(None, root, walk, "it is nested too deeply")
    return Composed(made, root, walk)
