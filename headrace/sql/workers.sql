-- The workers: main, which reads the stream and writes result tables, and others on which views are placed.  Only
-- members of the engine's role get rows.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_workers.
-- state: running; down: its process cannot be reached now, and views placed on it stand still; lost: it was down for
-- worker_lost_s, and its views are populated again elsewhere; or invited: it has a token to join from another
-- machine, and has not joined yet.
-- address: where a worker on another machine listens; pid: of its process there, if known.
-- This body runs only for statements of a form that the commander does not answer.
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
