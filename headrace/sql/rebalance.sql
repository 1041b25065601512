-- The views that should move to balance the load of workers, by the work of each per second.  With apply = true
-- they are moved, one after the other, as set_placement does.  For members of the engine's role.
-- busy_us: time of the view's own collections since their worker started; problem: why it was not moved.
CREATE OR REPLACE FUNCTION headrace.rebalance(
    apply boolean DEFAULT false, OUT view text, OUT worker_now text, OUT worker_then text, OUT busy_us bigint,
    OUT moved boolean, OUT problem text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine(
            'rebalance', 'show_rebalance', jsonb_build_object('apply', apply), '{}', coalesce(apply, false), coalesce(apply, false)))
      AS a(
          view text, worker_now text, worker_then text, busy_us bigint, moved boolean, problem text)
$$;
