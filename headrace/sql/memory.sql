-- Uses of the worker's memory, a row for each.  Rows with the names of views are shown to callers that act for their
-- owner; rows without a name to members of the engine's role.
-- limit_bytes: its limit, NULL if there is none.  Rows of the process are the operating system's totals; the others
-- are parts of these, or of the disk, and need not add up to them.
CREATE OR REPLACE FUNCTION headrace.memory(
    OUT part text, OUT view text, OUT bytes bigint, OUT limit_bytes bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('memory', 'show_memory'))
      AS a(
          part text, view text, bytes bigint, limit_bytes bigint)
$$;
