-- Uses of the worker's memory, a row for each.  Rows with the names of views are shown to callers that act for their
-- owner; rows without a name to members of the engine's role.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_memory.
-- limit_bytes: its limit, NULL if there is none.  Rows of the process are the operating system's totals; the others
-- are parts of these, or of the disk, and need not add up to them.
-- This body runs only for statements of a form that the commander does not answer.
CREATE OR REPLACE FUNCTION headrace.memory(
    OUT part text, OUT view text, OUT bytes bigint, OUT limit_bytes bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'memory is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.memory();'
               ' on any connection, CALL headrace.show_memory() answers the rows as one JSON array.';
END
$$;
