"""Headrace, Postgres and peers on the same data: ``make bench-peers ARGS='--rows 100000'``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog

from bench.__main__ import machine, shown
from bench.peers import data, others, ours
from bench.peers.lines import Line
from bench.scenario import Options


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("bench.peers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rows", type=int, default=200_000, help="orders")
    parser.add_argument("--changes", type=int, default=0, help="as many as orders when not given")
    parser.add_argument("--only", default=",".join(data.VIEWS), help="views, with commas")
    names = ",".join(peer.name for peer in others.PEERS)
    parser.add_argument("--peers", default=names, help="with commas; empty: we and Postgres")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="their environments")
    parsed = parser.parse_args(argv)
    for given, known in ((parsed.only, data.VIEWS), (parsed.peers, names.split(","))):
        if unknown := set(filter(None, given.split(","))) - set(known):
            parser.error(f"there is no {', '.join(sorted(unknown))}")
    return parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all of them, one after the other."""
    asked = arguments(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    views = tuple(filter(None, asked.only.split(",")))
    size = (asked.rows, asked.changes or asked.rows)
    options = Options()
    lines: list[Line] = list(ours.end_to_end(options, views, *size))
    more, answers, changed = ours.beside(options, views, *size)
    lines += more
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        data.make(Path(home), options, *size)
        for peer in others.PEERS:
            if peer.name in asked.peers.split(","):
                lines += others.measure(peer, asked.cache.resolve(), Path(home), answers)
    lines.sort(key=lambda line: views.index(line.view))
    figures = [line.figures(changed) for line in lines]
    if asked.json:
        print(json.dumps({"machine": machine(), "results": {"peers": figures}}))
    else:
        print("\n".join(shown(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
