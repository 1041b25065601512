"""Links of the console into the manual: each leads to a place that is there."""

from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest

from headrace.config import Settings
from headrace.console import app
from headrace.server.progress import short
from headrace.sql import seen
from headrace.sql.verbs import VERBS

STATIC = app.resources.files("headrace.console") / "static"
CODE = "".join(f.read_text() for f in STATIC.iterdir() if f.name.endswith(".js"))


@pytest.fixture(scope="module")
def manual():
    return app._files("manual", "manual/")


@pytest.fixture(scope="module")
def terms(manual):
    [(_, _, data)] = app._terms(manual).values()
    return msgspec.json.decode(data)


def is_there(manual, address):
    path, _, anchor = address.partition("#")
    page = manual[f"manual/{path}"][2].decode()
    return not anchor or f'id="{anchor}"' in page


def test_every_setting_and_call_is_linked(terms):
    assert {f.name for f in dataclasses.fields(Settings)} <= terms["settings"].keys()
    assert {name for name, verb in VERBS.items() if not verb.step} | {"what_if"} <= terms[
        "calls"
    ].keys()
    assert len(terms["events"]) > 150
    assert len(terms["messages"]) > 80


def test_every_link_leads_somewhere(manual, terms):
    places = {
        *(to for kind in ("settings", "calls", "events") for to in terms[kind].values()),
        *(to for _, to in terms["messages"]),
    }
    assert [to for to in sorted(places) if not is_there(manual, to)] == []


def test_pages_that_the_code_names_are_there(manual):
    named = re.findall(r'page\("([\w-]+)"(?:, "([\w-]+)")?\)', CODE)
    named += re.findall(
        r'\["([\w-]+)", "([\w-]+)"\](?=[,;} ])',
        re.findall(r"SQLSTATES = \{.*?\n\};", CODE, re.S)[0],
    )
    named += re.findall(r'(?:LISTED = |fresh: |status: )\["([\w-]+)", "([\w-]+)"\]', CODE)
    assert len(named) > 15
    lost = [
        n for n in named if not is_there(manual, f"manual/{n[0]}.html" + f"#{n[1]}" * bool(n[1]))
    ]
    assert lost == []


def test_without_a_manual_there_are_no_links():
    assert app._terms({}) == {}


@pytest.mark.parametrize(
    ("step", "percent", "left"),
    [
        ({"phase": "reading", "rows": 250, "total": 1000, "eta_s": 3.0}, 25, "3 s"),
        ({"phase": "writing", "rows": 999, "total": 1000, "eta_s": 200.0}, 100, "3 min 20 s"),
        ({"phase": "reading", "rows": 250, "total": 1000}, 25, None),
        ({"phase": "reading", "rows": 250}, None, None),
        ({"phase": "starting"}, None, None),
    ],
)
def test_progress_is_read_from_the_text_of_the_commander(step, percent, left):
    for begins in ("it is being filled: ", "it is being filled anew: "):
        told = seen.progress(f"{begins}{short(step)}")
        assert told == {"percent": percent, "left": left}
    assert seen.progress("(25 %), about 3 s left")["percent"] is None
    assert seen.progress(None)["percent"] is None
