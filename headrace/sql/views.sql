-- One row per view: its definition, plan and state.  Written by the engine only.
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
    UNIQUE (schema_name, view_name)
);
-- What the view relies on in the catalog (postgres/fingerprint.py); NULL until it is populated.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS watched jsonb;
-- The query as Postgres bound it, every name qualified: it means the same on any search path.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS canonical text;
-- The relations that it names, by OID and column number, for when they are renamed.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS named jsonb;
-- How often the view got another query: views that read it are made for one of them.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS revision integer NOT NULL DEFAULT 0;
-- An earlier version kept the names of owners.  They are known by OID and shown by name: what one has left
-- behind is not the next one's of his name.  0 is nobody.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_attribute
                WHERE attrelid = 'headrace.views'::pg_catalog.regclass AND attname = 'owner'
                  AND atttypid = 'pg_catalog.name'::pg_catalog.regtype) THEN
        DROP POLICY IF EXISTS own ON headrace.views;  -- made again by privacy.sql
        ALTER TABLE headrace.views RENAME COLUMN owner TO owner_name;
        ALTER TABLE headrace.views ADD COLUMN owner pg_catalog.regrole;
        UPDATE headrace.views v
           SET owner = coalesce((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = v.owner_name), 0)
         WHERE v.owner_name IS NOT NULL;
        ALTER TABLE headrace.views DROP COLUMN owner_name;
    END IF;
END
$$;
-- Nodes of its plan that other workers compute, with all below them: the worker of each.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS placed_parts jsonb NOT NULL DEFAULT '{}';
-- What was made of its result table by users: grants and indexes (sink/kept.py).
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS kept jsonb;
-- Of the error that has stopped it, with message and sqlstate: what is known, what can be done, the row
-- that it fails on, and what the server has tried by itself.  (An earlier version had all in the message.)
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS detail text;
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS hint text;
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS culprit text;
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS tried text;
-- What the server has done by itself, or is about to (server/resumer.py).
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS note text;
-- Since when it has its status; the last error of all, and when.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp();
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS last_error text;
-- Who has called pause_view last.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS paused_by regrole;
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS last_error_at timestamptz;
