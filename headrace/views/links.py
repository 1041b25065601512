"""links, add_link and drop_link: the network links between ``main`` and the other workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import HeadraceError, UndefinedError, UserError
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import links as catalog
from headrace.sql import nodes, views
from headrace.sql.links import BYTES_PER_S_MIN, LATENCY_MS_MAX, LinkFacts
from headrace.sql.verbs import AddLink, DropLink, Request
from headrace.views import workers


def links(context: JobContext, job: Job, request: Request) -> list[list[Any]]:
    """Return a row for each link, with the columns of ``sql/links.sql``."""
    with job.connection(context.settings.source, what="builder") as conn:
        if not views.seen(conn, request.caller).everything:
            return []
        found, said = nodes.listed(conn), catalog.said(conn)
    measured = _asked(context, job)
    return [
        _row(node.name, "elsewhere" if node.far else "here", measured.get(node.name), said)
        for node in found
    ]


def add_link(context: JobContext, job: Job, request: AddLink) -> None:
    """Declare the latency and bandwidth of a link.

    Raises:
        UserError: 22023, a value is out of range, or none is given.
        UndefinedError: 42704, there is no such worker.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    latency, rate = request.latency_ms, request.bytes_per_s
    if latency is None and rate is None:
        raise UserError(
            "no property of the link is given",
            hint="Give latency_ms, bytes_per_s or both; drop_link removes them.",
            sqlstate="22023",
        )
    if latency is not None and not 0 <= latency <= LATENCY_MS_MAX:
        raise UserError(f"latency_ms must be between 0 and {LATENCY_MS_MAX}", sqlstate="22023")
    if rate is not None and rate < BYTES_PER_S_MIN:
        raise UserError(f"bytes_per_s must be at least {BYTES_PER_S_MIN}", sqlstate="22023")
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        _put(conn, request.worker, latency, rate)


def drop_link(context: JobContext, job: Job, request: DropLink) -> None:
    """Use the measured values of a link again.

    Raises:
        UndefinedError: 42704, there is no such worker.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        _put(conn, request.worker, None, None)


def known(context: JobContext, job: Job, conn: Connection) -> dict[str, LinkFacts]:
    """Return the links to workers, for placement: declared values, else measured ones.

    An unknown link is ``LinkFacts()``, which has the cost of an ordinary one. So is a socket of
    this machine: a probe of it shows the speed of two processes.
    """
    said, measured = catalog.said(conn), _asked(context, job)
    return {
        node.name: said.get(node.name, LinkFacts()).over(
            _facts(measured.get(node.name)) if node.far else LinkFacts()
        )
        for node in nodes.listed(conn)
    }


def _facts(link: Mapping[str, Any] | None) -> LinkFacts:
    return LinkFacts() if link is None else LinkFacts(link["latency_us"], link["bandwidth"])


def _put(conn: Connection, worker: str, latency: int | None, rate: int | None) -> None:
    if not catalog.put(conn, worker, latency, rate):
        raise UndefinedError(f'worker "{worker}" does not exist')


def _asked(context: JobContext, job: Job) -> dict[str, dict[str, Any]]:
    """Return what ``main`` has measured, by worker; {} if it does not answer."""
    try:
        found: dict[str, dict[str, Any]] = context.worker.call("links", {}, job)
    except HeadraceError:
        return {}
    return found


def _row(
    name: str, kind: str, link: Mapping[str, Any] | None, said: Mapping[str, LinkFacts]
) -> list[Any]:
    facts = said.get(name, LinkFacts()).over(_facts(link))
    shown = [facts.latency_us, facts.bytes_per_s]
    overridden = name in said
    if link is None:
        return [name, kind, False, *shown, *(None,) * 4, overridden]
    return [
        *(name, kind, True, *shown),
        *(link["most"], link["out_now"], link["in_now"], link["packed"], overridden),
    ]
