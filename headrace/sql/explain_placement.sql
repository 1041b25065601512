-- Where the collections of a view are, or of a query would be; why; what each placement strategy would cost, and
-- what goes over the links between workers.
-- what: collection (worker, why it is there, bytes_s it sends, ns_per_row it takes), strategy (its workers, why it has
-- none, cost), link (bytes_s over it), or costs: whether bytes were measured in the running view, or are expected of
-- the tables' statistics while all of their rows change once.
-- cost: bytes over links, weighed by what these are like (links(): 1 is a gigabit per second without latency).  strategy: whose placement is shown; without it, the one that the view has.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_placement.
-- Whoever gets here has written something else than the statement that the commander answers.
CREATE OR REPLACE FUNCTION headrace.explain_placement(
    name_or_query text, strategy text DEFAULT NULL, OUT what text, OUT name text, OUT worker text, OUT why text,
    OUT bytes_s bigint, OUT cost bigint, OUT ns_per_row bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'explain_placement is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_placement(%1$L);'
            ' on any connection, CALL headrace.show_placement(%1$L) answers the rows as one JSON array.', name_or_query);
END
$$;
