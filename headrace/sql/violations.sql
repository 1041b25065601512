-- Violations of assertions: one row from the commit that made the table not empty to the one that made it empty again.
-- Written by the engine only.
-- assertion: its name, qualified.  violated_at: commit time of the last transaction of the batch; first_at: of the first.
-- xids: transactions of the batch, the first 100 of them; none: a population, or only the passing of time.
-- requests: the request id of each of these transactions; NULL: none has one.
-- rows: number of rows of the table after the batch.  sample: some of the rows that the batch has added.
-- webhook: pending, delivered or failed: the delivery of the last event; NULL: none is wanted.
CREATE TABLE IF NOT EXISTS headrace.violations (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    assertion_id  bigint NOT NULL REFERENCES headrace.assertion_states ON DELETE CASCADE,
    assertion     text NOT NULL,
    violated_at   timestamptz NOT NULL,
    rows          bigint NOT NULL,
    sample        jsonb NOT NULL,
    xids          bigint[] NOT NULL,
    transactions  int NOT NULL,
    first_at      timestamptz NOT NULL,
    lsn           pg_lsn NOT NULL,
    txid          bigint NOT NULL,
    recorded_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    resolved_at   timestamptz,
    resolved_xids bigint[],
    resolved_transactions int,
    resolved_first_at timestamptz,
    resolved_lsn  pg_lsn,
    resolved_txid bigint,
    webhook       text,
    requests      text[],
    resolved_requests text[]
);
CREATE INDEX IF NOT EXISTS violations_assertion_id ON headrace.violations (assertion_id, id);
