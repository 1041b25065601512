-- Estimates the cost of a view of a query, and suggests how to reduce it.  Without a query it lists the queries that
-- would profit most from being views, of those that pg_stat_statements shows to the caller.
-- topic: accepted, result, state, change, load, costliest, remedy, sharing, point, measured, statement …;
-- subject: its object; finding: a text; value and unit: its number; advice: what to do.
-- Numbers are estimates from Postgres' statistics and costs of our collections, unless the topic is measured.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_advice.
-- This body runs only for statements of a form that the commander does not answer.
CREATE OR REPLACE FUNCTION headrace.advise(
    query text DEFAULT NULL, OUT topic text, OUT subject text, OUT finding text, OUT value float8, OUT unit text,
    OUT advice text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'advise is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.advise(query);'
               ' on any connection, CALL headrace.show_advice(query) answers the rows as one JSON array.';
END
$$;
