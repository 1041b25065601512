-- One row per view: its definition, plan and state.  Written by the engine only.
-- owner: by OID, so that a later role of the same name does not own a dropped one's views; 0: no role.
-- watched: catalog facts that the view relies on (postgres/fingerprint.py); NULL until it is populated.
-- canonical: the query as Postgres bound it, with qualified names, so that it means the same on any search path.
-- named: the relations that it names, by OID and column number, in case they are renamed.
-- revision: how often the view got another query; views that read it depend on one revision.
-- kept: grants and indexes that users made on its result table (sink/table_metadata.py).
-- message, sqlstate, detail, hint, culprit, tried: the error that has stopped it, the row on which it failed
-- (culprit), and what the server has tried by itself.
-- note: what the server has done by itself, or is about to do (server/resumer.py).
-- since: start of its status; last_error: its last error ever, and when; paused_by: the last caller of pause_view.
-- placed_parts: nodes of its plan that other workers compute, with all below them, and the worker of each.
CREATE TABLE IF NOT EXISTS headrace.views (
    id          bigserial PRIMARY KEY,
    schema_name name NOT NULL,
    view_name   name NOT NULL,
    query       text NOT NULL,
    columns     jsonb,
    plan        jsonb,
    explain     jsonb,
    options     jsonb NOT NULL DEFAULT '{}',
    settings    jsonb NOT NULL DEFAULT '{}',
    owner       regrole,
    result_oid  oid,
    start_lsn   pg_lsn,
    status      text NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending', 'populating', 'running', 'paused', 'error', 'sink_error')),
    message     text,
    sqlstate    text,
    block       boolean NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.now(),
    watched     jsonb,
    canonical   text,
    named       jsonb,
    revision    integer NOT NULL DEFAULT 0,
    kept        jsonb,
    detail      text,
    hint        text,
    culprit     text,
    tried       text,
    note        text,
    since       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    last_error  text,
    last_error_at timestamptz,
    placed_parts jsonb NOT NULL DEFAULT '{}',
    paused_by   regrole,
    UNIQUE (schema_name, view_name)
);

-- For the search for stopped views, once a second.
CREATE INDEX IF NOT EXISTS views_stopped ON headrace.views (id) WHERE status = 'error';
