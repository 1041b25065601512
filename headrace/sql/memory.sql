-- What the worker's memory goes to: a row for each use.  With a view's name (or those of the views that share
-- it): of views whose owner the caller acts for; without: everybody's, for members of the engine's role.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_memory.
-- limit_bytes: how much it may be, NULL where nothing says.  Rows of the process are what the system says of all
-- of it; the others are parts of that, or of the disk, and need not add up to it.
-- Whoever gets here has written something else than the statement that the commander answers.
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
