-- What a view of a query would cost, and what would make it cheaper; without a query: which queries of this database
-- would profit most from being views (of those that pg_stat_statements shows to who asks).
-- topic: what a row is about (accepted, result, state, change, load, costliest, remedy, sharing, point, measured,
-- statement …); subject: of what; finding: in words; value and unit: its number; advice: what can be done.
-- Numbers are expected, by Postgres' statistics and figures of our collections, unless the topic is measured.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_advice.
-- Whoever gets here has written something else than the statement that the commander answers.
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
