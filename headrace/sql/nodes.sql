-- The workers besides the one that reads and writes.  Written by the engine only.
CREATE TABLE IF NOT EXISTS headrace.nodes (
    name     text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,19}$' AND name <> 'main'),
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
-- How many collections strategies may place there.
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS capacity integer NOT NULL DEFAULT 100;
-- Of a worker on another machine: what it proves itself by (SHA-256 of the token's secret), and what it
-- has said of itself since (join_worker).
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS token bytea;
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS address text;
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS certificate text;
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS seen_at timestamptz;
-- What somebody has said of the link to it (add_link); NULL: what is measured counts.
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS latency_ms bigint;
ALTER TABLE headrace.nodes ADD COLUMN IF NOT EXISTS bytes_per_s bigint;
