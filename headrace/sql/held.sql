-- What keeps views from being up to date, where only the engine knows it; written by the commander when it changes,
-- and not while there is nothing.  kind: work (its part of a batch takes long, since when), source (another database
-- that it reads is away), behind (it lacks commits from since on, and covers lsn: for view_states()).
CREATE TABLE IF NOT EXISTS headrace.held (
    view_id bigint NOT NULL REFERENCES headrace.views ON DELETE CASCADE ON UPDATE CASCADE,
    kind    text NOT NULL CHECK (kind IN ('work', 'source', 'behind')),
    what    text NOT NULL,
    since   timestamptz NOT NULL,
    lsn     pg_lsn,
    PRIMARY KEY (view_id, kind)
);
