-- Addresses to which violations are sent, and the secrets that sign the requests.  Written by the engine only, visible to
-- the owners of the assertions.
CREATE TABLE IF NOT EXISTS headrace.webhook_targets (
    assertion_id bigint PRIMARY KEY REFERENCES headrace.assertion_states ON DELETE CASCADE,
    url          text NOT NULL,
    secret       text NOT NULL
);
