-- What keeps views from being up to date, where only the engine knows it, for list_views(); written by the
-- commander when it changes, and not while there is nothing.  kind: work (its part of a batch takes long),
-- source (another database that it reads is away).
CREATE TABLE IF NOT EXISTS headrace.held (
    view_id bigint NOT NULL REFERENCES headrace.views ON DELETE CASCADE,
    kind    text NOT NULL CHECK (kind IN ('work', 'source')),
    what    text NOT NULL,
    since   timestamptz NOT NULL,
    PRIMARY KEY (view_id, kind)
);
