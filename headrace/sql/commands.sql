-- CALLs made on direct connections, for the commander to carry out.
-- Only submit() inserts, so "caller" is a role that the login role is a member of.
CREATE TABLE IF NOT EXISTS headrace.commands (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    procedure   text NOT NULL,
    arguments   jsonb NOT NULL,
    caller      name NOT NULL,
    login       name NOT NULL,
    settings    jsonb NOT NULL,
    status      text NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending', 'running', 'done', 'failed')),
    progress    jsonb,
    result      jsonb,
    error       jsonb,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.now(),
    finished_at timestamptz
);
CREATE INDEX IF NOT EXISTS commands_unfinished ON headrace.commands (id)
    WHERE status IN ('pending', 'running');
