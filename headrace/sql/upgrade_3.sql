-- To catalog 3.  Views that are behind are rows of headrace.held, which has a column for their position.  Nothing in
-- there is kept for long.
DROP TABLE IF EXISTS headrace.held;
