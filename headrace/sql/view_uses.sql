-- Views of Headrace that a view reads, by their result tables; they cannot be dropped while it does.
CREATE TABLE IF NOT EXISTS headrace.view_uses (
    view_id    bigint NOT NULL REFERENCES headrace.views ON DELETE CASCADE,
    result_oid oid NOT NULL,
    PRIMARY KEY (view_id, result_oid)
);
CREATE INDEX IF NOT EXISTS view_uses_result_oid ON headrace.view_uses (result_oid);
