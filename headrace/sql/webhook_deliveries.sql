-- Requests to webhooks: one for each event of a violation.  Written by the engine only.
-- due_at: time of the next attempt.  error: why the last one has failed.
CREATE TABLE IF NOT EXISTS headrace.webhook_deliveries (
    id           uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
    assertion_id bigint NOT NULL REFERENCES headrace.assertion_states ON DELETE CASCADE,
    violation_id bigint NOT NULL REFERENCES headrace.violations ON DELETE CASCADE,
    event        text NOT NULL CHECK (event IN ('violated', 'resolved')),
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'failed')),
    tries        int NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    error        text,
    created_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX IF NOT EXISTS webhook_deliveries_due_at ON headrace.webhook_deliveries (due_at) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS webhook_deliveries_open ON headrace.webhook_deliveries (assertion_id) WHERE status <> 'delivered';
CREATE INDEX IF NOT EXISTS webhook_deliveries_violation_id ON headrace.webhook_deliveries (violation_id);
