-- Lag of each view, in steps of step_s seconds (10 for a quarter of an hour, 60 for six hours, 600 for a week), for
-- lag_history().  The commander writes samples of views that were written or lag; none while all are idle.
-- A view keeps its samples when a resync gives it another id.
CREATE TABLE IF NOT EXISTS headrace.samples (
    view_id     bigint NOT NULL REFERENCES headrace.views ON UPDATE CASCADE ON DELETE CASCADE,
    step_s      int NOT NULL,
    at          timestamptz NOT NULL,
    batches     bigint,
    rows_per_s  float8,
    p50_ms      float8,
    p99_ms      float8,
    max_ms      float8,
    lag_ms      bigint,
    lag_bytes   bigint,
    state_bytes bigint,
    PRIMARY KEY (view_id, step_s, at)
);
