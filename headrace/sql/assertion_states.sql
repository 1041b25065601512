-- Assertions: views whose table must stay empty, and how far the commander has judged their rows.  Written by the engine
-- only.
-- txid: the changes up to this number, of the view's history, are in count, the number of rows of the table.
-- lsn: position of the last change that was judged.  A population may set the view back: changes before lsn are not
-- judged again.
-- since: commit time of the last change between empty and not empty.
-- pending: the violation that has begun but is not reported yet, because of grace.
-- violation_id: the violation that was reported and is not over.
-- unsent: payloads of notifications that could not be sent yet, because the server's queue is too full.
-- fill_*: the contents that the last population has left, after the changes of number fill_txid.
CREATE TABLE IF NOT EXISTS headrace.assertion_states (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    view_id      bigint NOT NULL UNIQUE REFERENCES headrace.views ON UPDATE CASCADE ON DELETE CASCADE,
    on_violation text NOT NULL CHECK (on_violation IN ('notify', 'webhook', 'both')),
    sample       int NOT NULL,
    grace        interval NOT NULL,
    txid         bigint NOT NULL DEFAULT -1,
    count        bigint NOT NULL DEFAULT 0,
    lsn          pg_lsn,
    since        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    pending      jsonb,
    violation_id bigint,
    unsent       text[] NOT NULL DEFAULT '{}',
    fill_txid    bigint NOT NULL,
    fill_rows    bigint NOT NULL,
    fill_sample  text[] NOT NULL,
    fill_lsn     pg_lsn NOT NULL,
    fill_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX IF NOT EXISTS assertion_states_unsent ON headrace.assertion_states (id) WHERE unsent <> '{}';
