-- Reasons why views are not up to date, where only the engine knows them; the commander writes them when they change.
-- kind: work (the view's part of a batch has taken long, since then), source (another database that it reads is
-- unavailable), behind (it lacks commits from since on, and covers lsn; for view_states()), cursor (what is the state of
-- its cursor, which does not lead; for view_states()), population (what is its progress).
CREATE TABLE IF NOT EXISTS headrace.held (
    view_id bigint NOT NULL REFERENCES headrace.views ON DELETE CASCADE ON UPDATE CASCADE,
    kind    text NOT NULL CHECK (kind IN ('work', 'source', 'behind', 'cursor', 'population')),
    what    text NOT NULL,
    since   timestamptz NOT NULL,
    lsn     pg_lsn,
    PRIMARY KEY (view_id, kind)
);
