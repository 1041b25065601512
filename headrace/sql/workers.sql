-- The workers: ``main``, which takes what comes and writes what goes, and others that views are placed on.  For
-- members of the engine's role; nobody else is told any.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_workers.
-- state: running; down: its process cannot be asked now, and views placed on it stand still; lost: it was so for
-- worker_lost_s, and they are filled anew elsewhere; or invited: on another machine, with a token, and it has not
-- joined yet.
-- address: where one on another machine listens; pid: there, as far as known.
-- Whoever gets here has written something else than the statement that the commander answers.
DROP FUNCTION IF EXISTS headrace.workers();
CREATE FUNCTION headrace.workers(
    OUT worker text, OUT state text, OUT pid bigint, OUT views bigint, OUT memory_bytes bigint, OUT since text,
    OUT address text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'workers is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.workers();'
               ' on any connection, CALL headrace.show_workers() answers the rows as one JSON array.';
END
$$;
