"""Plots of the output of ``--json``: ``make bench-plots ARGS='small.json drain.json'``.

Runs in a separate environment, with matplotlib and the standard library alone. Several documents of
one scenario (runs before and after a change) are drawn in one plot.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plot:
    """Axes of a scenario's plot; one curve for each value of ``by``."""

    scenario: str
    x: str
    y: str
    by: tuple[str, ...] = ()
    logarithmic: bool = False
    bars: bool = False


PLOTS: Final = (
    Plot("drain", "drain", "us_per_row", ("view",)),
    Plot("growth", "rows", "worker_us", ("view",), logarithmic=True),
    Plot("checkpoint", "changed_rows", "ms", ("view",), logarithmic=True),
    Plot("freshness", "rate", "p50_ms"),
    Plot("freshness", "rate", "p99_ms"),
    Plot("small", "views", "worker_ms", ("reached", "rows"), logarithmic=True),
    Plot("memory", "views", "worker_mb"),
    Plot("engine", "batch_rows", "us_per_row", ("view",), logarithmic=True),
    Plot("oltp_tax", "engine", "tps", bars=True),
    Plot("peers", "peer", "cpu_us_per_row", ("view",), bars=True),
    Plot("relay", "clients", "ratio", ("script", "protocol")),
)

Points = list[tuple[Any, float]]


def curves(plot: Plot, lines: list[Line]) -> dict[str, Points]:
    """Return the points by curve name, without lines that have no figure (``-``)."""
    out: dict[str, Points] = {}
    for line in lines:
        if isinstance(line.get(plot.y), int | float):
            name = ", ".join(f"{b} {line[b]}" if b == "rows" else str(line[b]) for b in plot.by)
            out.setdefault(name, []).append((line[plot.x], line[plot.y]))
    return out


def draw(plot: Plot, documents: dict[str, list[Line]], path: Path) -> None:
    """Draw one picture of the lines of some documents, which are labelled by name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    found = {
        ": ".join(filter(None, (document if len(documents) > 1 else "", name))): points
        for document, lines in documents.items()
        for name, points in curves(plot, lines).items()
    }
    for number, (name, points) in enumerate(found.items()):
        if plot.bars:
            places = list(dict.fromkeys(x for every in found.values() for x, _ in every))
            width = 0.8 / len(found)
            at = [places.index(x) + (number - (len(found) - 1) / 2) * width for x, _ in points]
            axes.bar(at, [y for _, y in points], width, label=name)
            axes.set_xticks(range(len(places)), places, rotation=20, ha="right")
        else:
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    if plot.logarithmic:
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set(xlabel=plot.x, ylabel=plot.y, title=f"{plot.scenario}: {plot.y}")
    if any(found):
        axes.legend(fontsize="small", ncols=1 + len(found) // 12)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw all that the documents have figures for; prints the names of the pictures."""
    parser = argparse.ArgumentParser("plots", description=__doc__)
    parser.add_argument("document", nargs="+", type=Path, help="written by --json")
    parser.add_argument("--to", type=Path, default=Path("docs/plots"), help="folder")
    asked = parser.parse_args(argv)
    asked.to.mkdir(parents=True, exist_ok=True)
    results = {path.stem: json.loads(path.read_text())["results"] for path in asked.document}
    for plot in PLOTS:
        lines = {
            name: found[plot.scenario] for name, found in results.items() if plot.scenario in found
        }
        if any(curves(plot, some) for some in lines.values()):
            path = asked.to / f"{plot.scenario}_{plot.y}.png"
            draw(plot, lines, path)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
