-- CALLs made on direct connections, for the commander to execute.
-- queued: made in a transaction, which its caller did not leave to wait: it is carried out after the COMMIT, and after earlier ones
-- of that role.  subject: the name that it is about.
-- Only the caller writes its row, and cannot choose "caller": a trigger sets it to the current user.  Inside a
-- function that runs as its owner, and wherever Postgres does maintenance with the rights of a table's owner,
-- that is this owner.  Roles are stored by OID, so a later role of the same name gets no rows of a dropped one.
CREATE TABLE IF NOT EXISTS headrace.commands (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    procedure   text NOT NULL,
    arguments   jsonb NOT NULL,
    caller      oid NOT NULL DEFAULT (pg_catalog.quote_ident(CURRENT_USER)::pg_catalog.regrole),
    settings    jsonb NOT NULL,
    status      text NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending', 'running', 'done', 'failed')),
    progress    jsonb,
    result      jsonb,
    error       jsonb,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.now(),
    finished_at timestamptz,
    queued      boolean NOT NULL DEFAULT false,
    subject     text,
    CHECK (pg_catalog.octet_length(procedure) <= 63),
    CHECK (pg_catalog.pg_column_size(arguments) <= 8388608),
    CHECK (pg_catalog.pg_column_size(settings) <= 65536)
);
CREATE INDEX IF NOT EXISTS commands_unfinished ON headrace.commands (id)
    WHERE status IN ('pending', 'running');
-- Sets and checks the row whatever the statement says, because some roles may write all tables and bypass row security.
CREATE OR REPLACE FUNCTION headrace.stamp_command() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- Not pg_column_size: of a value that comes from a table that is its compressed size.
    size    bigint := octet_length(NEW.arguments::text) + octet_length(NEW.settings::text);
    waiting bigint;
    bytes   bigint;
BEGIN
    -- A subscription's worker brings commands that were meant for another database.
    IF current_setting('session_replication_role') = 'replica' THEN
        RETURN NULL;
    END IF;
    NEW.caller := quote_ident(CURRENT_USER)::regrole;
    NEW.status := 'pending';
    NEW.created_at := now();
    NEW.subject := left(NEW.arguments ->> 'name', 200);
    IF size > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = 'the arguments and settings of the call are too large',
            DETAIL = 'All of them together may have 1 MB of text.';
    END IF;
    -- How many of them are carried out at once is a setting; this keeps the table small.
    SELECT count(*), coalesce(sum(octet_length(c.arguments::text) + octet_length(c.settings::text)), 0) INTO waiting, bytes
      FROM headrace.commands c WHERE c.caller = NEW.caller AND c.status IN ('pending', 'running');
    IF waiting >= 1000 THEN
        RAISE EXCEPTION USING ERRCODE = '53400',
            MESSAGE = 'role ' || quote_ident(CURRENT_USER) || ' has 1000 waiting calls and may have no more',
            HINT = 'Wait for some.';
    END IF;
    -- Calls that are written at the same moment do not see each other; the commander counts these (commands.py).
    IF waiting > 0 AND bytes + size > 4194304 THEN
        RAISE EXCEPTION USING ERRCODE = '53400',
            MESSAGE = 'calls of role ' || quote_ident(CURRENT_USER) || ' that wait have 4 MB of text and may have no more',
            HINT = 'Wait for some.';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER stamp BEFORE INSERT ON headrace.commands
    FOR EACH ROW EXECUTE FUNCTION headrace.stamp_command();
ALTER TABLE headrace.commands ENABLE ALWAYS TRIGGER stamp;
ALTER TABLE headrace.commands ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON headrace.commands;
CREATE POLICY own ON headrace.commands FOR SELECT
    USING (caller = (SELECT pg_catalog.quote_ident(CURRENT_USER)::pg_catalog.regrole::pg_catalog.oid));
DROP POLICY IF EXISTS send ON headrace.commands;
CREATE POLICY send ON headrace.commands FOR INSERT
    WITH CHECK (caller = pg_catalog.quote_ident(CURRENT_USER)::pg_catalog.regrole::pg_catalog.oid);
