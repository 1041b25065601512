-- Shows where the collections of a view are, or those of a query would be, and why; the cost of each placement
-- strategy, and the traffic of the links between workers.
-- what: collection (worker, why it is there, bytes_s it sends, ns_per_row it takes), strategy (its workers, why it has
-- none, cost), link (bytes_s over it), or costs: whether bytes were measured in the running view, or estimated from
-- the tables' statistics for one change of all their rows.
-- cost: bytes over links, weighted by their properties (links(): 1 is a gigabit per second without latency).
-- strategy: the strategy whose placement is shown; NULL: the view's present placement.
CREATE OR REPLACE FUNCTION headrace.explain_placement(
    name_or_query text, strategy text DEFAULT NULL, OUT what text, OUT name text, OUT worker text, OUT why text,
    OUT bytes_s bigint, OUT cost bigint, OUT ns_per_row bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT a.what, a.name, a.worker, a.why, a.bytes_s, a.cost, a.ns_per_row
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('explain_placement', 'show_placement',
            pg_catalog.jsonb_build_object('name_or_query', name_or_query, 'strategy', strategy), headrace.captured_settings()))
      AS a(what pg_catalog.text, name pg_catalog.text, worker pg_catalog.text, why pg_catalog.text, bytes_s pg_catalog.int8, cost pg_catalog.int8, ns_per_row pg_catalog.int8)
$$;
