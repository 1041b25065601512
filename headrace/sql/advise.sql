-- Estimates the cost of a view of a query, and suggests how to reduce it.  Without a query it lists the queries that
-- would profit most from being views, of those that pg_stat_statements shows to the caller.
-- topic: accepted, result, state, change, load, costliest, remedy, sharing, point, measured, statement …;
-- subject: its object; finding: a text; value and unit: its number; advice: what to do.
-- Numbers are estimates from Postgres' statistics and costs of our collections, unless the topic is measured.
CREATE OR REPLACE FUNCTION headrace.advise(
    query text DEFAULT NULL, OUT topic text, OUT subject text, OUT finding text, OUT value float8, OUT unit text,
    OUT advice text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT a.topic, a.subject, a.finding, a.value, a.unit, a.advice
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine('advise', 'show_advice',
            pg_catalog.jsonb_build_object('query', query), headrace.captured_settings()))
      AS a(topic pg_catalog.text, subject pg_catalog.text, finding pg_catalog.text, value pg_catalog.float8, unit pg_catalog.text, advice pg_catalog.text)
$$;
