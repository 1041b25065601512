-- To catalog 5.  The progress of populations is in rows of headrace.held, of another kind.  Nothing in there is kept for
-- long.
DROP TABLE IF EXISTS headrace.held;
-- NULL: no transaction is known yet.
ALTER TABLE IF EXISTS headrace.origins ADD COLUMN IF NOT EXISTS last_commit bytea;
ALTER TABLE IF EXISTS headrace.commands ADD COLUMN IF NOT EXISTS queued boolean NOT NULL DEFAULT false;
ALTER TABLE IF EXISTS headrace.commands ADD COLUMN IF NOT EXISTS subject text;
DROP FUNCTION IF EXISTS headrace.await_command(bigint, text);
ALTER TABLE IF EXISTS headrace.history ADD COLUMN IF NOT EXISTS net bigint, ADD COLUMN IF NOT EXISTS first_at timestamptz,
    ADD COLUMN IF NOT EXISTS transactions int, ADD COLUMN IF NOT EXISTS xids bigint[];
