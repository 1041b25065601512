-- Returns the effects that what_if has answered as rows.  change: added, removed or changed (rows with one primary key); times: how
-- often the row occurs, or how many more rows there are.  note: why the effects on a view are unknown, or not all shown.
CREATE OR REPLACE FUNCTION headrace.what_if_rows(
    effects jsonb, OUT view text, OUT change text, OUT times bigint, OUT before jsonb, OUT after jsonb, OUT note text)
RETURNS SETOF record
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT e.effect ->> 'view', e.effect ->> 'change', (e.effect ->> 'times')::bigint,
           nullif(e.effect -> 'before', 'null'), nullif(e.effect -> 'after', 'null'), e.effect ->> 'note'
      FROM jsonb_array_elements(effects) WITH ORDINALITY e (effect, place) ORDER BY e.place
$$;
