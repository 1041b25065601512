-- The workers besides the one that reads and writes.  Written by the engine only.
CREATE TABLE IF NOT EXISTS headrace.nodes (
    name     text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,19}$' AND name <> 'main'),
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
