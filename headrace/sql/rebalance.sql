-- The views that should go to other workers for these to have alike to do, by what each takes per second; with
-- apply = true they are moved, one after the other, as set_placement does.  For members of the engine's role.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_rebalance.
-- busy_us: what the view's own collections have taken since their worker began; problem: why it was not moved.
-- Whoever gets here has written something else than the statement that the commander answers.
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
