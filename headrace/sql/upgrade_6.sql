-- To catalog 6.  Requests that transactions belong to.
ALTER TABLE IF EXISTS headrace.history ADD COLUMN IF NOT EXISTS requests text[];
