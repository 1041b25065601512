-- Returns effects that what_if has answered as rows, by default those of the last call in this session.
-- change: added, removed or changed (rows with one primary key); times: how often the row occurs, or how many more rows there
-- are.  note: why the effects on a view are unknown, or not all shown.
CREATE OR REPLACE FUNCTION headrace.what_if_rows(
    effects jsonb DEFAULT NULL, OUT view text, OUT change text, OUT times bigint, OUT before jsonb, OUT after jsonb, OUT note text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    answer jsonb := coalesce(effects, nullif(current_setting('headrace.what_if', true), '')::jsonb);
BEGIN
    IF answer IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'what_if has not answered in this session',
            HINT = 'CALL headrace.what_if(…) first, or pass its answer: SELECT * FROM headrace.what_if_rows(…).';
    END IF;
    RETURN QUERY SELECT e.effect ->> 'view', e.effect ->> 'change', (e.effect ->> 'times')::bigint,
           nullif(e.effect -> 'before', 'null'), nullif(e.effect -> 'after', 'null'), e.effect ->> 'note'
      FROM jsonb_array_elements(answer) WITH ORDINALITY e (effect, place) ORDER BY e.place;
END
$$;
