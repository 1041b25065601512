-- Other databases whose tables views may read, and the stand-ins that these have here.  Written by the engine
-- only, and seen by nobody else: there are passwords in it.
-- position: what ended before it is in the WAL here; hold: what was committed at it or later waits, for
-- somebody makes a snapshot; wanted: somebody waits for that position.
-- state: starting, running, down (it cannot be reached now), lost (what comes next cannot be had).
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
    added_at  timestamptz NOT NULL DEFAULT pg_catalog.now()
);
