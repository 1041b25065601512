-- Shows where the collections of a view are, or those of a query would be, and why; the cost of each placement
-- strategy, and the traffic of the links between workers.
-- what: collection (worker, why it is there, bytes_s it sends, ns_per_row it takes), strategy (its workers, why it has
-- none, cost), link (bytes_s over it), or costs: whether bytes were measured in the running view, or estimated from
-- the tables' statistics for one change of all their rows.
-- cost: bytes over links, weighted by their properties (links(): 1 is a gigabit per second without latency).
-- strategy: the strategy whose placement is shown; NULL: the view's present placement.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_placement.
-- This body runs only for statements of a form that the commander does not answer.
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
