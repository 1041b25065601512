"""Graph of a plan for display, and its output formats.

    text      one line per node, inputs indented below it, at most ``WIDTH`` characters wide
    json      everything: the shape of ``Graph``, documented in docs/manual/explain.md
    dot       for Graphviz
    mermaid   for Markdown renderers

A graph is plain data, stored with the view in the catalog.  The output for a graph is
deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from headrace.errors import UserError

WIDTH: Final = 120
"""Characters in a line of a text."""
_INDENT: Final = 2
_DEPTH_MAX: Final = 20
"""Levels that are indented; below it a line says its level."""
_DETAIL_MIN: Final = 32
"""Characters of a node's detail that are always shown, even if its costs leave less room."""
_LABEL_MAX: Final = 60
"""Characters in a line of a drawn node."""
_PLAIN: Final = re.compile(r"[^\w .,:;=<>+*/()\[\]{}|&%$@!?~^'#-]")
"""Characters that Mermaid receives as a numeric escape."""

_BREAK: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Control characters and line breaks, which a line must not contain."""


class GraphColumn(msgspec.Struct, frozen=True):
    """An output column of a node."""

    name: str
    type: str = ""


class SharedEdge(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shared subplan: the output of the node is stored once for several views."""

    subplan: int
    shared_with: tuple[str, ...] = ()


class NodeNumbers(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements of a collection since its dataflow was created, and the size of its state."""

    worker: str
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    busy_us: int = 0
    """Inside of it, waiting for Postgres included."""
    cpu_us: int = 0
    share_pct: float = 0.0
    """Of the time of all collections of the view."""
    state_rows: int | None = None
    """None: it keeps nothing, or that is not known."""
    state_bytes: int | None = None
    state_exact: bool | None = None
    """False: both are estimates; None: it keeps nothing."""
    queued_rows: int | None = None
    """In the queue behind it, not yet read by everybody."""
    queued_bytes: int | None = None
    """Queued bytes that this view has not read."""


class GraphNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node: ``inputs`` are the ids of what it reads."""

    id: str
    kind: str
    detail: str = ""
    inputs: tuple[str, ...] = ()
    columns: tuple[GraphColumn, ...] = ()
    state: str = ""
    cost: str = ""
    state_rows: int | None = None
    """Expected when it was planned; None: nothing is known."""
    state_bytes: int | None = None
    edge: SharedEdge | None = None
    measured: NodeNumbers | None = None
    more: Mapping[str, Any] | None = None
    """Additional facts of one stage."""

    @property
    def title(self) -> str:
        """Kind and detail, without costs."""
        return f"{self.kind} {self.detail}".rstrip()


class Graph(msgspec.Struct, frozen=True):
    """A stage of a plan; ``root`` is the id of the node that all others lead to."""

    stage: str
    root: str
    nodes: tuple[GraphNode, ...]
    named: bool = False
    """Whether ids mean something to people."""
    notes: tuple[str, ...] = ()
    """Lines about all of it."""
    version: int = 1

    def by_id(self) -> dict[str, GraphNode]:
        """Return the nodes by id."""
        return {node.id: node for node in self.nodes}


READER: Final = msgspec.json.Decoder(Graph)
"""Made while we are imported: see ``collections/plan.py``."""


def plain(graph: Graph) -> dict[str, Any]:
    """Return the graph as JSON data."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(graph))
    return found


def of_plain(data: Any) -> Graph:
    """Return the graph that ``plain`` was given.

    Raises:
        msgspec.ValidationError: it is none.
    """
    return READER.decode(msgspec.json.encode(data))


def written(graph: Graph, how: str) -> str:
    """Return the graph in one of ``FORMATS``.

    Raises:
        UserError: 22023, there is no such format.
    """
    write = FORMATS.get(how)
    if write is None:
        raise unknown_format(how)
    return write(graph)


def unknown_format(how: str) -> UserError:
    """Return the error for a format that does not exist."""
    return UserError(f'there is no format "{how}"', hint=f"Formats: {', '.join(FORMATS)}.")


# --- text


def text(graph: Graph, width: int | None = WIDTH) -> str:
    """Return one line per node, clipped to ``width``; None: not clipped."""
    lines = (_clipped(line, width) for line in _lines(graph, width))
    return "\n".join([*lines, *(_clipped(note, width) for note in graph.notes)])


def _lines(graph: Graph, width: int | None) -> Iterator[str]:
    nodes = graph.by_id()
    shown: set[str] = set()
    waiting = [(graph.root, 0, False)]
    while waiting:
        name, depth, named_above = waiting.pop()
        node = nodes[name]
        head = _indent(depth) + (f"{node.id} " if graph.named else "")
        if name in shown:
            if not named_above:
                yield f"{head}{node.kind} (shared, see above)"
            continue
        shown.add(name)
        yield _line(head, node, width)
        above = node.kind == "Again"
        waiting += [(below, depth + 1, above) for below in reversed(node.inputs)]


def _indent(depth: int) -> str:
    if depth <= _DEPTH_MAX:
        return " " * (_INDENT * depth)
    return " " * (_INDENT * _DEPTH_MAX) + f"({depth}) "


def _line(head: str, node: GraphNode, width: int | None) -> str:
    tail = "; ".join(_about(node))
    whole = f"{head}{node.title}"
    if width is None and any(column.type for column in node.columns):
        whole += f" ({', '.join(f'{c.name} {c.type}' for c in node.columns)})"
    if not tail:
        return whole
    if width is not None:
        # The node itself has priority over its costs, which the JSON format has in full.
        room = max(width - len(tail) - 4, len(head) + min(_DETAIL_MIN, len(node.title)))
        whole = _clipped(whole, room)
    return f"{whole}  | {tail}"


def _about(node: GraphNode) -> list[str]:
    """Return the costs, state and sharing that follow the title of a node."""
    if node.measured is not None:
        return [*_measured(node.measured), *_edge(node.edge)]
    out = []
    if node.state:
        size = "" if node.state_rows is None else f", about {node.state_rows} rows"
        if node.state_bytes is not None:
            size += f" of {node.state_bytes // 1024} kB"
        out.append(f"keeps {node.state}{size}")
    if node.cost:
        out.append(node.cost)
    return [*_edge(node.edge), *out]


def _edge(edge: SharedEdge | None) -> list[str]:
    if edge is None:
        return []
    names = ", ".join(edge.shared_with) or "no other view now"
    return [f"subplan {edge.subplan}, kept once, shared with {names}"]


def _measured(found: NodeNumbers) -> list[str]:
    out = [f"{found.share_pct:.0f} % of time", f"{found.rows_in} → {found.rows_out} rows"]
    out.append(f"cpu {_time(found.cpu_us)}")
    if found.state_rows is not None:
        about = "~" if found.state_exact is False else ""
        out.append(f"keeps {about}{found.state_rows} rows, {_size(found.state_bytes or 0)}")
    if found.queued_bytes:
        out.append(f"queued {_size(found.queued_bytes)}")
    if found.worker != "main":
        out.append(f"on {found.worker}")
    return out


def _time(us: int) -> str:
    if us < 10_000:
        return f"{us / 1000:.1f} ms"
    return f"{us / 1000:.0f} ms" if us < 10_000_000 else f"{us / 1_000_000:.0f} s"


def _size(octets: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if octets < 10_000 or unit == "GB":
            return f"{octets} {unit}"
        octets //= 1024
    raise AssertionError("the last unit takes all")


def _clipped(line: str, width: int | None) -> str:
    line = _BREAK.sub(" ", line)
    if width is None or len(line) <= width:
        return line
    return line[: width - 1].rstrip() + "…"


# --- json, dot, mermaid


def json(graph: Graph) -> str:
    """Return the whole graph, indented by two spaces."""
    return pretty(graph)


def pretty(data: Any) -> str:
    """Return indented JSON."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def dot(graph: Graph) -> str:
    """Return a digraph of Graphviz; rows flow from the bottom up, as in the text format."""
    names = _names(graph)
    out = [f'digraph "{graph.stage}" {{', "  rankdir=BT;", "  node [shape=box];"]
    for node in graph.nodes:
        label = "\\n".join(_dot_quoted(line) for line in _label(graph, node))
        out.append(f'  {names[node.id]} [label="{label}"];')
    for node in graph.nodes:
        out += [f"  {names[below]} -> {names[node.id]};" for below in node.inputs]
    return "\n".join([*out, "}"])


def _dot_quoted(line: str) -> str:
    return line.replace("\\", "\\\\").replace('"', '\\"')


def mermaid(graph: Graph) -> str:
    """Return a flowchart of Mermaid."""
    names = _names(graph)
    out = ["flowchart BT"]
    for node in graph.nodes:
        label = "<br/>".join(_mermaid_quoted(line) for line in _label(graph, node))
        out.append(f'  {names[node.id]}["{label}"]')
    for node in graph.nodes:
        out += [f"  {names[below]} --> {names[node.id]}" for below in node.inputs]
    return "\n".join(out)


def _mermaid_quoted(line: str) -> str:
    """Escape characters that have a meaning in Mermaid as numbers, as in HTML.

    ``#`` begins such a number, and ``<`` a tag.
    """
    line = line.replace("#", "#35;").replace("<", "#lt;").replace(">", "#gt;")
    return _PLAIN.sub(lambda found: f"#{ord(found[0])};", line)


def _names(graph: Graph) -> dict[str, str]:
    """Return names for the nodes that are no keywords in any of the formats."""
    return {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}


def _label(graph: Graph, node: GraphNode) -> list[str]:
    head = f"{node.id} {node.kind}" if graph.named else node.kind
    lines = [head, node.detail, *_about(node)]
    return [_clipped(line, _LABEL_MAX) for line in lines if line]


FORMATS: Final[dict[str, Callable[[Graph], str]]] = {
    "text": text,
    "json": json,
    "dot": dot,
    "mermaid": mermaid,
}
