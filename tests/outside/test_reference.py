"""The reference names every call and every option, as they are, and nothing else."""

import re
from pathlib import Path

from headrace.population import options
from headrace.sql import calls

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "manual" / "reference.md").read_text()
ASKED = {"view_changes", "view_as_of", "view_txid", "feed_read", "create_feed", "drop_feed"}
ASKED |= {"feed_ack", "join_worker", "list_views", "status", "lag_history", "lineage"}
ASKED |= {"connection_points"}
"""Functions, and procedures that ask nobody."""


def named() -> set[str]:
    """What stands in the page's tables as a call."""
    rows = [line for line in PAGE.split("\n") if line.startswith("| `")]
    return set(re.findall(r"`(\w+)\((?!NULL)", "\n".join(rows))) | set(
        re.findall(r"`(\w+)\(NULL", "\n".join(rows))
    )


def test_every_call_stands_in_it():
    procedures = set(calls.names())
    assert len(procedures) > 30
    answered = {n.removeprefix("show_") for n in procedures if n.startswith("show_")}
    answered = {"advise" if n == "advice" else n for n in answered}
    answered = {"explain_placement" if n == "placement" else n for n in answered}
    wanted = procedures | answered | ASKED | {"explain_view", "verify_view"}
    assert named() - {"now"} == wanted


def test_every_option_stands_in_it():
    table = PAGE.split("### Options of a view")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.split("\n") if line.startswith("| `")]
    found = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert found == set(options._TYPES)
