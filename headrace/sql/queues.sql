-- What stands in queues: of each subplan that views share, what it has sent and who has not read it; a row
-- for each who reads it, of views whose owner the caller acts for.  Answered by the commander, on its own
-- port: a function cannot ask the engine.  On direct connections there is the procedure show_queues.
-- node: the line of the reader's explain_view whose rows they are.
-- queued_rows, queued_bytes: what one of its readers still needs.  resident_bytes: of its blocks, those that are
-- in memory.  tail_txid: the last txid that is durable in the reader; head_txid: the last that it has processed;
-- behind_bytes: what came after its tail.
-- kind: subplan; lane: what has come for views of a slow commit group, which is processed beside the others; or
-- stream: with wal_retention = local, the batches of the stream that are kept on our side (its rows are messages;
-- shown to members of the engine's role, for all views need it).
-- priority: how urgent it is that the reader reads on, by which queues leave memory and come back: 0 where nothing
-- waits for it, or it stands still; else 100, and 100 for each time that what waits is as late as the view may be.
-- resident_pct: how much of what is queued is in memory, when that was written down last; running: whether the
-- reader is at work on it just now, so that none of it leaves memory.
-- Whoever gets here has written something else than the statement that the commander answers.
DROP FUNCTION IF EXISTS headrace.queues();
CREATE FUNCTION headrace.queues(
    OUT queue text, OUT reader text, OUT node text, OUT queued_rows bigint, OUT queued_bytes bigint,
    OUT blocks bigint, OUT contiguous boolean, OUT resident_bytes bigint, OUT base_txid bigint,
    OUT front_txid bigint, OUT tail_txid bigint, OUT head_txid bigint, OUT behind_bytes bigint,
    OUT kind text, OUT priority bigint, OUT resident_pct bigint, OUT running boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'queues is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.queues();'
               ' on any connection, CALL headrace.show_queues() answers the rows as one JSON array.';
END
$$;
