-- To catalog 6.  Requests that transactions belong to.
ALTER TABLE IF EXISTS headrace.history ADD COLUMN IF NOT EXISTS requests text[];
ALTER TABLE IF EXISTS headrace.violations ADD COLUMN IF NOT EXISTS requests text[],
    ADD COLUMN IF NOT EXISTS resolved_requests text[];
