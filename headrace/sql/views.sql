-- One row per view: its definition, plan and state.  Written by the engine only.
-- owner: by OID, for what one has left behind is not the next one's of his name; 0 is nobody.
-- watched: what the view relies on in the catalog (postgres/fingerprint.py); NULL until it is populated.
-- canonical: the query as Postgres bound it, every name qualified: it means the same on any search path.
-- named: the relations that it names, by OID and column number, for when they are renamed.
-- revision: how often the view got another query: views that read it are made for one of them.
-- kept: what was made of its result table by users: grants and indexes (sink/kept.py).
-- message, sqlstate, detail, hint, culprit, tried: of the error that has stopped it, what is known, what can be
-- done, the row that it fails on, and what the server has tried by itself.
-- note: what the server has done by itself, or is about to (server/resumer.py).
-- since: when it got its status; last_error: the last error of all, and when; paused_by: who has called pause_view last.
-- placed_parts: nodes of its plan that other workers compute, with all below them: the worker of each.
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

-- Looked for once a second.
CREATE INDEX IF NOT EXISTS views_stopped ON headrace.views (id) WHERE status = 'error';
