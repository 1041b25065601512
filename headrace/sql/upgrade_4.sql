-- To catalog 4.  The states of cursors that do not lead are rows of headrace.held, of another kind.  Nothing in there is
-- kept for long.
DROP TABLE IF EXISTS headrace.held;
