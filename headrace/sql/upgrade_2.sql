-- To catalog 2, from all that was installed before there were numbers (sql/upgrades.py): so each part looks
-- whether it is needed.
ALTER TABLE IF EXISTS headrace.nodes ADD COLUMN IF NOT EXISTS token bytea,
    ADD COLUMN IF NOT EXISTS address text, ADD COLUMN IF NOT EXISTS certificate text,
    ADD COLUMN IF NOT EXISTS seen_at timestamptz, ADD COLUMN IF NOT EXISTS latency_ms bigint,
    ADD COLUMN IF NOT EXISTS bytes_per_s bigint, ADD COLUMN IF NOT EXISTS capacity integer NOT NULL DEFAULT 100,
    ADD COLUMN IF NOT EXISTS lost_at timestamptz;
-- Samples of a view would hinder its being filled anew, for it gets another id.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_constraint
                WHERE conrelid = pg_catalog.to_regclass('headrace.samples') AND contype = 'f'
                  AND confupdtype <> 'c') THEN
        ALTER TABLE headrace.samples DROP CONSTRAINT samples_view_id_fkey,
            ADD CONSTRAINT samples_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views
                ON UPDATE CASCADE ON DELETE CASCADE;
    END IF;
END
$$;
DO $$
BEGIN
    -- An earlier version believed a name that it was told.  Nothing in here is kept for long.
    IF EXISTS (SELECT FROM pg_catalog.pg_attribute
                WHERE attrelid = pg_catalog.to_regclass('headrace.commands') AND attname = 'login'
                  AND NOT attisdropped) THEN
        DROP TABLE headrace.commands;
    END IF;
END
$$;
DROP FUNCTION IF EXISTS headrace.submit(text, jsonb, name, jsonb);
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
-- What was made of its result table by users: grants and indexes (sink/table_metadata.py).
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
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS last_error_at timestamptz;
-- Nodes of its plan that other workers compute; who has called pause_view last.
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS placed_parts jsonb NOT NULL DEFAULT '{}';
ALTER TABLE headrace.views ADD COLUMN IF NOT EXISTS paused_by regrole;
