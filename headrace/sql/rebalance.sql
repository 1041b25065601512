-- The views that should move to balance the load of workers, by the work of each per second.  With apply = true
-- they are moved, one after the other, as set_placement does.  For members of the engine's role.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_rebalance.
-- busy_us: time of the view's own collections since their worker started; problem: why it was not moved.
-- This body runs only for statements of a form that the commander does not answer.
CREATE OR REPLACE FUNCTION headrace.rebalance(
    apply boolean DEFAULT false, OUT view text, OUT worker_now text, OUT worker_then text, OUT busy_us bigint,
    OUT moved boolean, OUT problem text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'rebalance is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.rebalance();'
               ' on any connection, CALL headrace.show_rebalance() answers the rows as one JSON array.';
END
$$;
