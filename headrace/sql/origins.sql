-- Other databases whose tables views may read.  Only the engine writes and reads this table, because it contains
-- passwords.
-- position: transactions that ended before it are in the WAL here; hold: commits at it or later wait while a
-- snapshot is made; wanted: position that a session waits for.
-- last_commit: message of the source about the last transaction that is in the WAL here; its commit LSN is 0 before the
-- first one.
-- state: starting, running, down (it cannot be reached now), lost (the next changes are no longer available).
CREATE TABLE IF NOT EXISTS headrace.origins (
    name      text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,19}$' AND name <> 'main'),
    dsn       text NOT NULL,
    slot      text NOT NULL UNIQUE,
    system_id text NOT NULL,
    timeline  int NOT NULL,
    published text NOT NULL,
    position  pg_lsn NOT NULL,
    wanted    pg_lsn NOT NULL,
    hold      pg_lsn,
    state     text NOT NULL DEFAULT 'starting' CHECK (state IN ('starting', 'running', 'down', 'lost')),
    problem   text,
    changed   bigint NOT NULL DEFAULT 0,
    heard_at  timestamptz,
    added_at  timestamptz NOT NULL DEFAULT pg_catalog.now(),
    last_commit bytea
);
