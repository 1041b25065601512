-- Connection points: named outputs of views, with what is kept for those who attach later.  Written by the
-- engine only.
-- keep: the view's history is kept for at least so long; NULL: the point needs none.
-- storage_key: a column of the view's table that begins an index of it; NULL: the point needs none.
CREATE TABLE IF NOT EXISTS headrace.points (
    name        text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 63),
    view_id     bigint NOT NULL REFERENCES headrace.views ON UPDATE CASCADE ON DELETE CASCADE,
    keep        interval,
    storage_key name,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX IF NOT EXISTS points_view_id ON headrace.points (view_id);
