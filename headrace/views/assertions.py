"""create_assertion and drop_assertion: queries that must stay empty.

An assertion is a view, whose table holds the violating rows.  Its row in the catalog, which makes
it an assertion, is written in the transaction that makes the table.  The commander does the rest.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from typing import Any, Final

from psycopg import sql

from headrace.counting import counted
from headrace.errors import UndefinedError, UnsupportedError, UserError
from headrace.planner import Planned
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.replace import image
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.sql import assertions
from headrace.sql.assertion_spec import AssertionSpec
from headrace.sql.verbs import CreateAssertion, CreateView, DropView
from headrace.views import create, drop

_SECRET_BYTES: Final = 32


def create_assertion(context: JobContext, job: Job, request: CreateAssertion) -> dict[str, Any]:
    """Create a view that must stay empty.

    Raises:
        UnsupportedError: row security of a table applies to the caller.
        HeadraceError: as for ``create_view``.
    """
    spec = request.options
    if spec.grace is not None:
        with job.connection(context.settings.source, what="builder") as conn, job.translating():
            assertions.check_grace(conn, spec.grace)
    wanted = CreateView(
        request.name,
        request.query,
        spec.view,
        caller=request.caller,
        settings=request.settings,
    )
    planned = create.plan(context, job, wanted)
    _check_whole(planned.view.planned)
    answer = AssertionCreation(context, job, planned, spec).run()
    rows = answer["rows"]
    found = f"is violated by {counted(rows, 'row')}" if rows else "holds"
    answer["message"] = f'assertion "{answer["name"]}" {found}'
    return answer


def _check_whole(planned: Planned) -> None:
    """Refuse rows that the owner may not see: they would report a violation."""
    if planned.physical.sink.conditions:
        raise UnsupportedError(
            "an assertion over tables with row-level security is not supported",
            detail="Policies apply to the role that creates it, so it may see only a part of the"
            " violating rows.",
            hint="Create it as a role to which no policy of these tables applies.",
        )


class AssertionCreation(create.Creation):
    """One create_assertion after planning."""

    def __init__(
        self, context: JobContext, job: Job, planned: create.PlannedView, spec: AssertionSpec
    ) -> None:
        super().__init__(context, job, planned)
        self._spec = spec

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Make the view an assertion as well; see ``Creation``."""
        super().appear(conn, staged, facts)
        target = self._view.target
        name = sql.Identifier(target.schema, target.name)
        columns = [field.name for field in self._planned.columns]
        found = assertions.contents(conn, name, image("t", columns), self._spec.sample)
        secret = f"whsec_{b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"
        assertions.insert(conn, self._view_id, self._spec, found, secret)


def drop_assertion(context: JobContext, job: Job, request: DropView) -> dict[str, Any]:
    """Drop an assertion with its table and its violations.

    Raises:
        UndefinedError: 42P01, there is none of that name, and not ``if_exists``.
        UserError: 42809, the view is not an assertion.
        HeadraceError: as for ``drop_view``.
    """
    with job.connection(context.settings.source, what="builder") as conn:
        try:
            view = names.find_owned(conn, request.name, request.caller, request.settings)
        except UndefinedError:
            return drop.drop_view(context, job, request)
        if assertions.sample_of(conn, view.id) is None and view.result_oid is not None:
            raise UserError(
                f"view {view.shown} is not an assertion",
                hint="CALL headrace.drop_view drops a view.",
                sqlstate="42809",
            )
    return drop.drop_view(context, job, request)
