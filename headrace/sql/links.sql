-- The links between main and the other workers, as main sees them.  Only members of the engine's role get rows.
-- kind: here (a socket on this machine) or elsewhere (TLS); up: whether it is alive.  latency_us: one way, in
-- microseconds; bandwidth: the maximum of the last three probes, most: of all probes of the link; NULL: not measured
-- yet.  out_bytes_per_s, in_bytes_per_s: traffic to and from the worker, over ten seconds.
-- packed: whether rows are compressed; overridden: whether latency_us or bandwidth was set by add_link.
DROP FUNCTION IF EXISTS headrace.links();
CREATE FUNCTION headrace.links(
    OUT worker text, OUT kind text, OUT up boolean, OUT latency_us bigint, OUT bandwidth bigint, OUT most bigint,
    OUT out_bytes_per_s bigint, OUT in_bytes_per_s bigint, OUT packed boolean, OUT overridden boolean)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('links', 'show_links'))
      AS a(
          worker text, kind text, up boolean, latency_us bigint, bandwidth bigint, most bigint,
          out_bytes_per_s bigint, in_bytes_per_s bigint, packed boolean, overridden boolean)
$$;
