-- Connection points: named outputs of views, with the history and index that later subscribers need.  Written by the
-- engine only.
-- keep: how long the view's history must be kept at least; NULL: the point needs none.
-- storage_key: first column of an index of the view's table; NULL: the point needs none.
CREATE TABLE IF NOT EXISTS headrace.points (
    name        text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 63),
    view_id     bigint NOT NULL REFERENCES headrace.views ON UPDATE CASCADE ON DELETE CASCADE,
    keep        interval,
    storage_key name,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX IF NOT EXISTS points_view_id ON headrace.points (view_id);
