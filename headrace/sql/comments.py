"""Help in psql: a comment on each routine of schema ``headrace``, and function ``help``."""

from __future__ import annotations

from typing import Final

VIEWS, FRESH, INSIGHT, HISTORY, ASSERTIONS, WORKERS, SOURCES, SERVER = TOPICS = (
    *("views", "freshness", "insight", "history", "assertions", "workers", "sources", "server"),
)

ABOUT: Final[dict[str, tuple[str, str]]] = {
    "create_view": (VIEWS, "Create a table for the result of a query, fill it, and keep it up to date."),
    "check_view": (VIEWS, "Check whether create_view would accept a query; show the plan."),
    "alter_view": (VIEWS, "Give a view another query or other options."),
    "rename_view": (VIEWS, "Give a view another name or schema."),
    "set_owner": (VIEWS, "Give a view another owner, whose rights count from then on."),
    "pause_view": (VIEWS, "Stop a view at its present contents."),
    "resume_view": (VIEWS, "Let a paused view go on; it catches up."),
    "resync_view": (VIEWS, "Fill a view again, in its present table; also one that has stopped."),
    "drop_view": (VIEWS, "Drop a view and its table."),
    "create_index": (VIEWS, "Create an index on the table of a view."),
    "drop_index": (VIEWS, "Drop an index of a view."),
    "set_latency": (VIEWS, "Set how late after a commit a view may show it."),
    "calls": (VIEWS, "List the calls that you have made in transactions, and how they ended."),
    "list_views": (FRESH, "List all views: status, lag, and what holds them up."),
    "status": (FRESH, "Show the state of the engine, one fact a row, with what to do."),
    "wait_for": (FRESH, "Wait until a view shows all that is committed now, or before a position."),
    "lag_history": (FRESH, "Show how late a view has been."),
    "verify_view": (FRESH, "Prove that a view equals its query; list the rows that differ."),
    "verify": (FRESH, "Prove that a view equals its query; return the differences as JSON."),
    "explain_view": (INSIGHT, "Show the plan of a view, or of a query."),
    "explain": (INSIGHT, "Show the plan of a view, or of a query, as one text."),
    "lineage": (INSIGHT, "Show the columns of tables from which the columns of a view come."),
    "why": (INSIGHT, "Return the rows of tables from which the rows of a view with the given values follow."),
    "show_why": (INSIGHT, "Return the rows of why as JSON."),
    "why_not": (INSIGHT, "Say where rows with the given values are dropped, if a view has none."),
    "show_why_not": (INSIGHT, "Return the rows of why_not as JSON."),
    "what_if": (INSIGHT, "Try an INSERT, UPDATE or DELETE, and return what it would change in views."),
    "what_if_rows": (INSIGHT, "Return the answer of what_if as rows."),
    "advise": (INSIGHT, "Estimate the cost of a view of a query, or suggest queries that should be views."),
    "show_advice": (INSIGHT, "Return the rows of advise as JSON."),
    "view_stats": (INSIGHT, "Show rows, time and state of the parts of a view."),
    "show_view_stats": (INSIGHT, "Return the rows of view_stats as JSON."),
    "memory": (INSIGHT, "Show the memory of the engine, by part and view."),
    "show_memory": (INSIGHT, "Return the rows of memory as JSON."),
    "queues": (INSIGHT, "Show the queues between the parts of the engine."),
    "show_queues": (INSIGHT, "Return the rows of queues as JSON."),
    "batches": (INSIGHT, "Show the last batches of changes, and where their time went."),
    "show_batches": (INSIGHT, "Return the rows of batches as JSON."),
    "set_history": (HISTORY, "Set for how long the changes of a view are kept."),
    "view_changes": (HISTORY, "Return the changes of a view since a txid."),
    "view_as_of": (HISTORY, "Return the rows of a view as of a txid or time."),
    "view_diff": (HISTORY, "Return what differs in a view between two txids or times."),
    "who_changed": (HISTORY, "Return the last changes of the rows with the given values."),
    "view_txid": (HISTORY, "Return the txid of the last change that a view shows."),
    "create_feed": (HISTORY, "Create a feed: a position in the changes of a view for one reader."),
    "feed_read": (HISTORY, "Return the next changes of a feed."),
    "feed_ack": (HISTORY, "Move a feed past the changes that were processed."),
    "drop_feed": (HISTORY, "Drop a feed."),
    "create_connection_point": (HISTORY, "Name the output of a view, which other views and readers can use."),
    "drop_connection_point": (HISTORY, "Drop a connection point."),
    "connection_points": (HISTORY, "List the connection points."),
    "create_assertion": (ASSERTIONS, "Create an assertion: a query that must stay empty."),
    "check_assertion": (ASSERTIONS, "Raise an error if an assertion is violated by what is committed now."),
    "drop_assertion": (ASSERTIONS, "Drop an assertion, its table and its violations."),
    "assertions": (ASSERTIONS, "List the assertions: which hold, which are violated, and of which that is not known."),
    "webhooks": (ASSERTIONS, "Show the webhooks of your assertions, with their secrets and deliveries."),
    "workers": (WORKERS, "Show the processes that keep views: load, memory, moves."),
    "show_workers": (WORKERS, "Return the rows of workers as JSON."),
    "add_worker": (WORKERS, "Start another worker for views."),
    "create_worker_token": (WORKERS, "Create the token by which a worker on another machine joins."),
    "join_worker": (WORKERS, "Announce a worker on another machine; it calls this by itself."),
    "remove_worker": (WORKERS, "Remove a worker on which no view is placed."),
    "drain_worker": (WORKERS, "Move all views of a worker to others."),
    "set_placement": (WORKERS, "Move a view, or parts of it, to workers."),
    "explain_placement": (WORKERS, "Show where the parts of a view are, or those of a query would be."),
    "show_placement": (WORKERS, "Return the rows of explain_placement as JSON."),
    "rebalance": (WORKERS, "Propose moves of views that balance the load, or make them."),
    "show_rebalance": (WORKERS, "Return the rows of rebalance as JSON."),
    "add_link": (WORKERS, "State latency and bandwidth of the link to a worker."),
    "drop_link": (WORKERS, "Use the measured properties of a link again."),
    "links": (WORKERS, "Show the links to the workers."),
    "show_links": (WORKERS, "Return the rows of links as JSON."),
    "add_source": (SOURCES, "Add another database whose tables views may read."),
    "drop_source": (SOURCES, "Drop a source that no view reads."),
    "create_logical_table": (SOURCES, "Create a Postgres view: the union of a table here and in all sources."),
    "sources": (SOURCES, "Show the sources and how far they have been read."),
    "show_sources": (SOURCES, "Return the rows of sources as JSON."),
    "clients": (SERVER, "Show the sessions on the port of Headrace."),
    "show_clients": (SERVER, "Return the rows of clients as JSON."),
    "client_stats": (SERVER, "Show counters of the sessions on the port."),
    "show_client_stats": (SERVER, "Return the rows of client_stats as JSON."),
    "end_client": (SERVER, "End a session on the port."),
    "settings": (SERVER, "Show the settings."),
    "show_settings": (SERVER, "Return the rows of settings as JSON."),
    "reload": (SERVER, "Read the settings again."),
    "fail_batch": (SERVER, "Process a batch in flight, and all later ones, again."),
    "help": (SERVER, "Show this help: of all calls, of a topic, or of calls whose name contains a word."),
}  # fmt: skip
"""Topic and meaning, by name of a routine that users call; all others are internal."""

TABLES: Final[dict[str, dict[str, str]]] = {
    "events": {
        "": "What the processes of Headrace have logged; rows of your views, and for members of the role of the engine all.",
        "at": "When it was logged.",
        "level": "info, warning or error.",
        "event": "Name of the event; the manual has a list with meanings and actions.",
        "view": "Name of the view or assertion that the event is about.",
        "view_id": "Its number at that time; another one after a resync.",
        "process": "Process that logged it: commander, worker, builder, or a worker or source by name.",
        "fields": "All other fields of the event.",
    },
    "violations": {
        "": "Times at which the query of an assertion was not empty.",
        "violated_at": "Commit time of the last transaction of the batch that made it so.",
        "rows": "Number of rows after that batch.",
        "sample": "Some of the rows that the batch has added.",
        "xids": "Transactions of the batch, the first 100 of them.",
        "resolved_at": "Commit time of the batch that made it empty again; NULL while it is not.",
    },
}  # fmt: skip
"""Comments on tables that users read, and (by name) on their columns."""

_INTERNAL: Final = "Internal to Headrace."


def text() -> str:
    """Return the statements that create function ``help`` and the comments; it comes last.

    A comment is written only where it differs, because a start compares the catalog's rows.
    """
    rows = ",\n        ".join(
        f"('{name}', '{topic}', '{about}')" for name, (topic, about) in ABOUT.items()
    )
    return f"""CREATE OR REPLACE FUNCTION headrace.help(
    topic text DEFAULT NULL, OUT name text, OUT call text, OUT about text, OUT of_topic text)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT p.proname::text,
           CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT * FROM' END || format(' headrace.%s(%s)', p.proname,
               CASE p.prokind WHEN 'p' THEN regexp_replace(pg_get_function_arguments(p.oid), '(^|, )IN ', '\\1', 'g')
                    ELSE (SELECT coalesce(string_agg(a, ', '), '')
                            FROM regexp_split_to_table(pg_get_function_arguments(p.oid), ', (?=\\w+ |OUT )') a
                           WHERE a !~ '^OUT ') END),
           h.about, h.topic
      FROM (VALUES
        {rows}) h(name, topic, about)
      JOIN pg_proc p ON p.proname = h.name AND p.pronamespace = 'headrace'::regnamespace
     WHERE help.topic IS NULL OR h.topic = lower(help.topic) OR strpos(h.name, lower(help.topic)) > 0
     ORDER BY array_position('{{{",".join(TOPICS)}}}'::text[], h.topic), p.proname
$$;
DO $$
DECLARE
    routine record;
BEGIN
    FOR routine IN
        SELECT p.oid::pg_catalog.regprocedure AS signature, coalesce(h.about, '{_INTERNAL}') AS about
          FROM pg_catalog.pg_proc p LEFT JOIN headrace.help() h ON h.name OPERATOR(pg_catalog.=) p.proname::pg_catalog.text
         WHERE p.pronamespace OPERATOR(pg_catalog.=) 'headrace'::pg_catalog.regnamespace
           AND pg_catalog.obj_description(p.oid, 'pg_proc') IS DISTINCT FROM coalesce(h.about, '{_INTERNAL}')
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON ROUTINE %s IS %L', routine.signature, routine.about);
    END LOOP;
END
$$;
{_of_tables()}"""  # noqa: S608  names and texts of our own table


def _of_tables() -> str:
    rows = ",\n        ".join(
        f"('headrace.{table}'::pg_catalog.regclass, '{column}', '{about}')"
        for table, columns in TABLES.items()
        for column, about in columns.items()
    )
    return f"""DO $$
DECLARE
    shown record;
BEGIN
    FOR shown IN
        SELECT CASE WHEN a.attname IS NULL THEN pg_catalog.format('TABLE %s', h.place)
                    ELSE pg_catalog.format('COLUMN %s.%I', h.place, a.attname) END AS what, h.about
          FROM (VALUES
        {rows}) h(place, name, about)
          LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) h.place
           AND a.attname OPERATOR(pg_catalog.=) h.name
         WHERE pg_catalog.col_description(h.place, coalesce(a.attnum, 0)) IS DISTINCT FROM h.about
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON %s IS %L', shown.what, shown.about);
    END LOOP;
END
$$;
"""  # noqa: S608  names and texts of our own table
