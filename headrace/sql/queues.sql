-- Contents of the queues: the output of each shared subplan that a reader still needs; a row for each reader, of
-- views whose owner the caller acts for.
-- node: the line of the reader's explain_view that produces the rows.
-- queued_rows, queued_bytes: rows that any of its readers still needs.  resident_bytes: its blocks in memory.
-- tail_txid: the last txid that is durable in the reader; head_txid: the last that it has processed;
-- behind_bytes: bytes after its tail.
-- kind: subplan; or stream: the intake log, whose rows are messages. It has a row for all views that lead, shown to
-- members of the engine's role, and one for each position at which views lag.
-- priority: urgency of the reader, by which queues are evicted from memory and loaded: 0 if nothing waits for it, or
-- it is stopped; else 100, plus 100 for each multiple of the view's latency by which its input is late.
-- resident_pct: part of the queue in memory, as last recorded; running: whether the reader is reading now, so that
-- none of it is evicted.
DROP FUNCTION IF EXISTS headrace.queues();
CREATE FUNCTION headrace.queues(
    OUT queue text, OUT reader text, OUT node text, OUT queued_rows bigint, OUT queued_bytes bigint,
    OUT blocks bigint, OUT contiguous boolean, OUT resident_bytes bigint, OUT base_txid bigint,
    OUT front_txid bigint, OUT tail_txid bigint, OUT head_txid bigint, OUT behind_bytes bigint,
    OUT kind text, OUT priority bigint, OUT resident_pct bigint, OUT running boolean)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('queues', 'show_queues'))
      AS a(
          queue text, reader text, node text, queued_rows bigint, queued_bytes bigint, blocks bigint,
          contiguous boolean, resident_bytes bigint, base_txid bigint, front_txid bigint, tail_txid bigint,
          head_txid bigint, behind_bytes bigint, kind text, priority bigint, resident_pct bigint, running boolean)
$$;
