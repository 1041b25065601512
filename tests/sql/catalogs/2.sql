-- Schema headrace as commit ee53d2d left it (catalog 2): with a view that has a history, a point and a feed, and a view of that.
-- Of pg_dump --schema=headrace --no-owner --inserts, without its settings, empty lines, indents and the bodies of procedures and status(),
-- which an upgrade replaces.
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
CREATE SCHEMA headrace;
COMMENT ON SCHEMA headrace IS 'Headrace: incrementally maintained views. Remove with `headrace uninstall`.';
CREATE PROCEDURE headrace.add_link(IN worker text, IN latency_ms bigint DEFAULT NULL::bigint, IN bytes_per_s bigint DEFAULT NULL::bigint)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.add_source(IN name text, IN dsn text, IN tables text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.add_worker(IN name text, IN capacity bigint DEFAULT '100'::bigint)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.advise(query text DEFAULT NULL::text, OUT topic text, OUT subject text, OUT finding text, OUT value double precision, OUT unit text, OUT advice text) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'advise is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.advise(query);'
' on any connection, CALL headrace.show_advice(query) answers the rows as one JSON array.';
END
$$;
CREATE PROCEDURE headrace.alter_view(IN name text, IN query text, IN options jsonb DEFAULT '{}'::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.at_work() RETURNS text
LANGUAGE sql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT string_agg(format('%I.%I', v.schema_name, v.view_name), ', ' ORDER BY h.since, v.id)
FROM headrace.held h JOIN headrace.views v ON v.id = h.view_id WHERE h.kind = 'work'
$$;
CREATE FUNCTION headrace.await_command(command bigint, INOUT seen text, OUT done boolean) RETURNS record
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
c       headrace.commands;
waited  int := 0;
code    text;
what    text;
BEGIN
PERFORM pg_try_advisory_xact_lock_shared(1212437059, (command % 2147483647)::int);
LOOP
SELECT * INTO c FROM headrace.commands x
WHERE x.id = command AND x.caller = quote_ident(CURRENT_USER)::regrole::oid;
IF NOT FOUND THEN
RAISE EXCEPTION USING ERRCODE = '42704',
MESSAGE = format('command %s does not exist', command);
END IF;
IF c.progress ->> 'text' IS DISTINCT FROM seen AND c.progress ? 'text' THEN
seen := c.progress ->> 'text';
RAISE NOTICE '%', seen;
END IF;
EXIT WHEN c.status IN ('done', 'failed');
IF waited >= 50 THEN
IF NOT headrace.engine_running() THEN
RAISE EXCEPTION USING ERRCODE = '57P03',
MESSAGE = 'headrace is not running',
DETAIL = 'The engine went away while the command was under way; it ends what can be ended when it is back.',
HINT = 'See headrace.list_views() once it runs again.';
END IF;
done := false;
RETURN;
END IF;
waited := waited + 1;
PERFORM pg_sleep(CASE WHEN waited < 10 THEN 0.003 ELSE 0.02 END);
END LOOP;
IF c.status = 'failed' THEN
code := coalesce(c.error ->> 'C', 'XX000');
what := coalesce(c.error ->> 'M', 'unknown error');
IF c.error ? 'D' AND c.error ? 'H' THEN
RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what,
DETAIL = c.error ->> 'D', HINT = c.error ->> 'H';
ELSIF c.error ? 'D' THEN
RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, DETAIL = c.error ->> 'D';
ELSIF c.error ? 'H' THEN
RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, HINT = c.error ->> 'H';
END IF;
RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what;
END IF;
done := true;
END
$$;
CREATE FUNCTION headrace.batch_s() RETURNS double precision
LANGUAGE sql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $_$
SELECT (extract(epoch FROM clock_timestamp())
- substring(a.application_name FROM 'busy since ([0-9.]+)$')::numeric)::float8
FROM headrace.meta m
JOIN pg_stat_activity a ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
WHERE m.key = 'worker'
$_$;
CREATE FUNCTION headrace.batches(OUT txid bigint, OUT attempt bigint, OUT state text, OUT at text, OUT transactions bigint, OUT rows bigint, OUT views bigint, OUT process_us bigint, OUT wait_us bigint, OUT write_us bigint, OUT fresh_us bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'batches is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.batches();'
' on any connection, CALL headrace.show_batches() answers the rows as one JSON array.';
END
$$;
CREATE FUNCTION headrace.captured_settings() RETURNS jsonb
LANGUAGE sql STABLE
AS $$ SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name)) FROM pg_catalog.unnest('{TimeZone, DateStyle, IntervalStyle, extra_float_digits, bytea_output, lc_monetary, lc_numeric, lc_time, xmloption, xmlbinary, default_text_search_config, timezone_abbreviations, quote_all_identifiers, standard_conforming_strings, backslash_quote, array_nulls, transform_null_equals, search_path}'::pg_catalog.text[]) AS s (name) $$;
CREATE PROCEDURE headrace.check_view(IN query text, IN options jsonb DEFAULT '{}'::jsonb, INOUT plan text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.command_result(command bigint) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT c.result FROM headrace.commands c
WHERE c.id = command AND c.caller = quote_ident(CURRENT_USER)::regrole::oid
$$;
CREATE FUNCTION headrace.connection_points(OUT name text, OUT view text, OUT history interval, OUT storage_key text, OUT since timestamp with time zone, OUT attached text[]) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$
SELECT p.name, format('%I.%I', v.schema_name, v.view_name), p.keep, p.storage_key::text,
CASE WHEN p.keep IS NOT NULL THEN h.first_at END,
ARRAY(SELECT format('%I.%I', a.schema_name, a.view_name)
FROM headrace.view_uses u JOIN headrace.views a ON a.id = u.view_id
WHERE u.result_oid = v.result_oid ORDER BY 1)
FROM headrace.points p JOIN headrace.views v ON v.id = p.view_id  -- row security decides
LEFT JOIN headrace.histories h ON h.view_id = p.view_id
ORDER BY p.name
$$;
CREATE PROCEDURE headrace.create_connection_point(IN name text, IN view text, IN at text DEFAULT NULL::text, IN history text DEFAULT NULL::text, IN storage_key text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.create_feed(IN name text, IN view regclass, IN since bigint DEFAULT NULL::bigint)
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.create_index(IN view text, IN definition text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.create_logical_table(IN name text, IN of_table text, IN source_column text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.create_view(IN name text, IN query text, IN options jsonb DEFAULT '{}'::jsonb, IN replace boolean DEFAULT false)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.create_worker_token(IN name text, INOUT token text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drain_worker(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drop_connection_point(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drop_feed(IN name text)
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drop_index(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drop_link(IN worker text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drop_source(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.drop_view(IN name text, IN if_exists boolean DEFAULT false)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.engine_running() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT EXISTS (
SELECT FROM headrace.meta m
JOIN pg_stat_activity a
ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
WHERE m.key = 'commander')
$$;
CREATE PROCEDURE headrace.explain(IN name_or_query text, IN stage text DEFAULT 'physical'::text, IN format text DEFAULT 'text'::text, IN dialect text DEFAULT NULL::text, INOUT plan text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.explain_placement(name_or_query text, strategy text DEFAULT NULL::text, OUT what text, OUT name text, OUT worker text, OUT why text, OUT bytes_s bigint, OUT cost bigint, OUT ns_per_row bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $_$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'explain_placement is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = pg_catalog.format(
'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_placement(%1$L);'
' on any connection, CALL headrace.show_placement(%1$L) answers the rows as one JSON array.', name_or_query);
END
$_$;
CREATE FUNCTION headrace.explain_view(name_or_query text, stage text DEFAULT 'physical'::text, format text DEFAULT 'text'::text, dialect text DEFAULT NULL::text) RETURNS TABLE(plan text)
LANGUAGE plpgsql STABLE
AS $_$
DECLARE
parts   pg_catalog.text[];
stages  pg_catalog.jsonb;
told    pg_catalog.text;
BEGIN
BEGIN
parts := pg_catalog.parse_ident(name_or_query);
EXCEPTION WHEN invalid_parameter_value THEN
parts := NULL;
END;
IF parts IS NULL OR dialect IS NOT NULL THEN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'a query is explained only on the port of headrace, by a statement of its own',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_view(query);'
' on any connection, CALL headrace.explain(query) answers the plan. The name of a view may be explained anywhere.';
END IF;
SELECT v.explain INTO stages FROM headrace.views v
WHERE v.view_name OPERATOR(pg_catalog.=) parts[pg_catalog.array_upper(parts, 1)]::pg_catalog.name
AND CASE  -- CASE … WHEN 1 would look for an operator on the caller's path
WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1 THEN v.schema_name OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false))
WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN v.schema_name OPERATOR(pg_catalog.=) parts[1]::pg_catalog.name
ELSE false END
ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), v.schema_name) LIMIT 1;
IF NOT FOUND THEN
RAISE EXCEPTION USING ERRCODE = '42P01',
MESSAGE = pg_catalog.format('view "%s" does not exist', name_or_query),
HINT = 'See headrace.list_views().';
END IF;
IF stage OPERATOR(pg_catalog.=) ANY (ARRAY['analyze', 'ast']::pg_catalog.text[])
OR format OPERATOR(pg_catalog.=) ANY (ARRAY['dot', 'mermaid']::pg_catalog.text[]) THEN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = pg_catalog.format('stage "%s" in format "%s" is answered only on the port of headrace, as a statement of its own', stage, format),
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = pg_catalog.format('On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.explain_view(%1$L, %2$L, %3$L);'
' on any connection, CALL headrace.explain(%1$L, %2$L, %3$L) answers it as one text.', name_or_query, stage, format);
END IF;
IF NOT format OPERATOR(pg_catalog.=) ANY (ARRAY['text', 'json']::pg_catalog.text[]) THEN
RAISE EXCEPTION USING ERRCODE = '22023',
MESSAGE = pg_catalog.format('there is no format "%s"', format), HINT = 'Formats: text, json, dot, mermaid.';
END IF;
stages := stages OPERATOR(pg_catalog.-) 'tidy';
IF NOT coalesce(pg_catalog.jsonb_typeof(stages OPERATOR(pg_catalog.->) stage) OPERATOR(pg_catalog.=) 'string', false) THEN
RAISE EXCEPTION USING ERRCODE = '22023',
MESSAGE = pg_catalog.format('view "%s" has no plan of stage "%s"', name_or_query, stage),
HINT = pg_catalog.format('Stages: %s.', (SELECT pg_catalog.string_agg(k, ', ' ORDER BY k)
FROM pg_catalog.jsonb_each(stages) s (k, v)
WHERE pg_catalog.jsonb_typeof(v) OPERATOR(pg_catalog.=) 'string'));
END IF;
IF format OPERATOR(pg_catalog.=) 'text' THEN
RETURN QUERY SELECT t FROM pg_catalog.regexp_split_to_table(
pg_catalog.rtrim(stages OPERATOR(pg_catalog.->>) stage, E'\n'), E'\n') t;
RETURN;
END IF;
SELECT pg_catalog.jsonb_pretty(g) INTO told
FROM pg_catalog.jsonb_array_elements(coalesce(stages OPERATOR(pg_catalog.->) 'graphs', '[]'::pg_catalog.jsonb)) g
WHERE (g OPERATOR(pg_catalog.->>) 'stage') OPERATOR(pg_catalog.=) stage;
RETURN QUERY SELECT coalesce(told, pg_catalog.jsonb_pretty(pg_catalog.jsonb_build_object('stage', stage, 'lines',
pg_catalog.to_jsonb(pg_catalog.string_to_array(pg_catalog.rtrim(stages OPERATOR(pg_catalog.->>) stage, E'\n'), E'\n')))));
END
$_$;
CREATE PROCEDURE headrace.fail_batch(IN txid bigint)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.feed_ack(IN name text, IN txid bigint)
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$BEGIN END$$;
CREATE TABLE headrace.feeds (
id bigint NOT NULL,
name text,
history_id bigint NOT NULL,
owner oid DEFAULT (to_regrole(quote_ident((CURRENT_USER)::text)))::oid NOT NULL,
txid bigint NOT NULL,
created_at timestamp with time zone DEFAULT now() NOT NULL,
CONSTRAINT feeds_name_check CHECK (((length(name) >= 1) AND (length(name) <= 63)))
);
CREATE FUNCTION headrace.feed_of(name text) RETURNS headrace.feeds
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$
DECLARE
found headrace.feeds;
BEGIN
SELECT f.* INTO found FROM headrace.feeds f WHERE f.name = feed_of.name
ORDER BY f.owner = to_regrole(quote_ident(current_user)) DESC, f.id LIMIT 1;
IF found.name IS NULL THEN
RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('feed "%s" does not exist', feed_of.name),
DETAIL = 'A feed ends with its view, or with the view''s history.',
HINT = 'CALL headrace.create_feed(name, view [, since]).';
END IF;
RETURN found;
END
$$;
CREATE FUNCTION headrace.feed_read(name text, max bigint DEFAULT 10000) RETURNS TABLE(txid bigint, lsn pg_lsn, commit_at timestamp with time zone, weight bigint, data text)
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$
#variable_conflict use_column
DECLARE
feed  headrace.feeds;
kept  headrace.histories;
total bigint := 0;
bound bigint;
part  record;
BEGIN
feed := headrace.feed_of(feed_read.name);
SELECT h.* INTO kept FROM headrace.histories h WHERE h.id = feed.history_id;
IF kept.id IS NULL THEN
RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('permission denied for the view of feed "%s"', feed.name),
DETAIL = 'Who may read a whole view may read its changes. The view, or its history, may also be gone.';
END IF;
IF feed.txid < kept.first_txid THEN
PERFORM headrace.history_lost(kept.result_oid, format('txid %s, which feed "%s" has acknowledged', feed.txid, feed.name),
headrace.view_txid(kept.result_oid));
END IF;
FOR part IN SELECT c.txid, c.row_count FROM headrace.history c
WHERE c.history_id = kept.id AND c.txid > feed.txid ORDER BY c.txid, c.part LOOP
EXIT WHEN total >= feed_read.max;  -- of its txid, all is read below
bound := part.txid;
total := total + part.row_count;
END LOOP;
RETURN QUERY
SELECT c.txid, c.lsn, c.commit_at, r.weight, r.data
FROM headrace.history c
CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
WHERE c.history_id = kept.id AND c.txid > feed.txid AND c.txid <= bound
ORDER BY c.txid, c.part, r.place;
END
$$;
CREATE FUNCTION headrace.history_lost(view regclass, wanted text, last bigint) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $_$
DECLARE
kept headrace.histories;
BEGIN
kept := headrace.history_of(view);
RAISE EXCEPTION USING ERRCODE = '22023',
MESSAGE = format('the history of view %s does not reach %s', view, wanted),
DETAIL = format('It goes from txid %s (LSN %s, %s) to txid %s.', kept.first_txid, kept.first_lsn,
kept.first_at, last),
HINT = format('To begin anew, read headrace.view_txid(%1$L) and the table in one snapshot, or'
' headrace.view_as_of(NULL::%1$s, txid => %2$s), and go on from that txid. What is later than'
' the last change is the table itself, after headrace.wait_for.', view, last);
END
$_$;
CREATE TABLE headrace.histories (
id bigint NOT NULL,
view_id bigint NOT NULL,
result_oid oid NOT NULL,
keep interval NOT NULL,
shift bigint DEFAULT 0 NOT NULL,
first_txid bigint,
first_lsn pg_lsn,
first_at timestamp with time zone
);
CREATE FUNCTION headrace.history_of(view regclass) RETURNS headrace.histories
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$
DECLARE
kept headrace.histories;
BEGIN
SELECT h.* INTO kept FROM headrace.histories h WHERE h.result_oid = view::oid;
IF kept.first_txid IS NOT NULL THEN
RETURN kept;
ELSIF kept.id IS NOT NULL THEN
RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('the history of view %s has not begun', view),
DETAIL = 'It begins when the engine writes the view.';
ELSIF NOT has_table_privilege(view, 'SELECT') THEN
RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('permission denied for view %s', view),
DETAIL = 'Who may read a whole view may read its changes.';
ELSIF row_security_active(view) THEN
RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('table %s has row-level security', view),
DETAIL = 'Its changes are not told to those who may not read all of its rows.';
END IF;
RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('no history is kept of %s', view),
HINT = format('If it is a view, its owner can CALL headrace.set_history(%L, ''2 hours'').', view);
END
$$;
CREATE FUNCTION headrace.history_times(times numeric) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
IF times < 0 THEN
RAISE EXCEPTION USING ERRCODE = 'XX001', MESSAGE = 'the view''s table is not what its changes have made of it',
DETAIL = 'Somebody else has written it.',
HINT = 'CALL headrace.set_history(view, NULL) and CALL headrace.resync_view(view), then keep a history again.';
END IF;
RETURN times;
END
$$;
CREATE FUNCTION headrace.join_worker(token text, address text, certificate text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
was headrace.nodes;
BEGIN
IF length(address) > 300 OR length(certificate) > 10000 THEN
RAISE EXCEPTION USING ERRCODE = '22001', MESSAGE = 'address or certificate of the worker is too long';
END IF;
SELECT n.* INTO was FROM headrace.nodes n
WHERE n.name = split_part(join_worker.token, '.', 1)
AND n.token = sha256(convert_to(split_part(join_worker.token, '.', 2), 'UTF8'))
FOR NO KEY UPDATE;
IF NOT FOUND THEN
RAISE EXCEPTION USING ERRCODE = '28000', MESSAGE = 'the worker''s token is not valid',
DETAIL = 'The worker was removed, a newer token was made for it, or this database is not that of its engine.',
HINT = 'CALL headrace.create_worker_token(name) makes one.';
END IF;
IF was.certificate <> join_worker.certificate AND was.address <> join_worker.address
AND was.seen_at > clock_timestamp() - interval '30 seconds' THEN
RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('worker "%s" has joined from elsewhere', was.name),
DETAIL = format('It listens on %s, and said so less than 30 seconds ago.', was.address),
HINT = 'Stop that one, and try again; or have another worker: CALL headrace.create_worker_token(name).';
END IF;
UPDATE headrace.nodes n
SET address = join_worker.address, certificate = join_worker.certificate, seen_at = clock_timestamp()
WHERE n.name = was.name;
RETURN (SELECT m.value FROM headrace.meta m WHERE m.key = 'certificate');
END
$$;
CREATE FUNCTION headrace.lag_history(view text, OUT at timestamp with time zone, OUT step_s integer, OUT batches bigint, OUT rows_per_s double precision, OUT p50_ms double precision, OUT p99_ms double precision, OUT max_ms double precision, OUT lag_ms bigint, OUT lag_bytes bigint, OUT state_bytes bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
DECLARE
found pg_catalog.oid := pg_catalog.to_regclass(lag_history.view)::pg_catalog.oid;
number pg_catalog.int8;
fine   pg_catalog.timestamptz := pg_catalog.now() OPERATOR(pg_catalog.-) '15 min'::pg_catalog.interval;
coarse pg_catalog.timestamptz := pg_catalog.now() OPERATOR(pg_catalog.-) '6 h'::pg_catalog.interval;
BEGIN
SELECT v.id INTO number FROM headrace.views v WHERE v.result_oid OPERATOR(pg_catalog.=) found;
IF number IS NULL THEN
RAISE EXCEPTION USING ERRCODE = '42P01',
MESSAGE = pg_catalog.format('view "%s" does not exist', lag_history.view),
DETAIL = 'Or it is somebody else''s.', HINT = 'See headrace.list_views().';
END IF;
RETURN QUERY
SELECT s.at, s.step_s, s.batches, s.rows_per_s, s.p50_ms, s.p99_ms, s.max_ms, s.lag_ms, s.lag_bytes, s.state_bytes
FROM headrace.samples s
WHERE s.view_id OPERATOR(pg_catalog.=) number
AND CASE WHEN s.step_s OPERATOR(pg_catalog.=) 10 THEN s.at OPERATOR(pg_catalog.>=) fine
WHEN s.step_s OPERATOR(pg_catalog.=) 60 THEN s.at OPERATOR(pg_catalog.>=) coarse AND s.at OPERATOR(pg_catalog.<) fine
ELSE s.at OPERATOR(pg_catalog.<) coarse END
ORDER BY s.at DESC;
END
$$;
CREATE FUNCTION headrace.lineage(name text, OUT column_name text, OUT source_table text, OUT source_column text, OUT how text) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
DECLARE
parts  pg_catalog.text[] := pg_catalog.parse_ident(name);
kept   pg_catalog.jsonb;
BEGIN
SELECT coalesce(v.explain OPERATOR(pg_catalog.->) 'origins', pg_catalog.jsonb_build_object('why', v.explain OPERATOR(pg_catalog.->>) 'lineage'))
INTO kept FROM headrace.views v
WHERE v.view_name OPERATOR(pg_catalog.=) parts[pg_catalog.array_upper(parts, 1)]::pg_catalog.name
AND CASE
WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 1 THEN v.schema_name OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false))
WHEN pg_catalog.array_length(parts, 1) OPERATOR(pg_catalog.=) 2 THEN v.schema_name OPERATOR(pg_catalog.=) parts[1]::pg_catalog.name
ELSE false END
ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), v.schema_name) LIMIT 1;
IF NOT FOUND THEN
RAISE EXCEPTION USING ERRCODE = '42P01',
MESSAGE = pg_catalog.format('view "%s" does not exist', name), HINT = 'See headrace.list_views().';
END IF;
IF pg_catalog.jsonb_typeof(kept) OPERATOR(pg_catalog.=) 'object' THEN
RAISE EXCEPTION USING ERRCODE = '55000',
MESSAGE = pg_catalog.format('nothing is kept of what the columns of view "%s" come from', name),
DETAIL = coalesce(pg_catalog.format('It is %s.', kept OPERATOR(pg_catalog.->>) 'why'), 'An earlier version has made it.'),
HINT = CASE WHEN (kept OPERATOR(pg_catalog.->>) 'why') IS NULL THEN 'Run CALL headrace.resync_view.' ELSE '' END;
END IF;
RETURN QUERY
SELECT c.entry OPERATOR(pg_catalog.->>) 'column',
coalesce(r.oid::pg_catalog.regclass::pg_catalog.text,
CASE WHEN o.origin IS NOT NULL THEN pg_catalog.format('%I.%I', o.origin OPERATOR(pg_catalog.->>) 'schema',
o.origin OPERATOR(pg_catalog.->>) 'table') END),
coalesce(a.attname::pg_catalog.text, CASE WHEN pg_catalog.length(o.origin OPERATOR(pg_catalog.->>) 'name') OPERATOR(pg_catalog.>) 0
THEN o.origin OPERATOR(pg_catalog.->>) 'name' END),
o.origin OPERATOR(pg_catalog.->>) 'how'
FROM pg_catalog.jsonb_array_elements(kept) WITH ORDINALITY c (entry, place)
LEFT JOIN LATERAL pg_catalog.jsonb_array_elements(c.entry OPERATOR(pg_catalog.->) 'from') WITH ORDINALITY o (origin, place) ON true
LEFT JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) (o.origin OPERATOR(pg_catalog.->>) 'oid')::pg_catalog.oid
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid AND NOT a.attisdropped
AND a.attnum OPERATOR(pg_catalog.>) 0
AND a.attnum::pg_catalog.int8 OPERATOR(pg_catalog.=) (o.origin OPERATOR(pg_catalog.->>) 'attnum')::pg_catalog.int8
ORDER BY c.place, o.place;
END
$$;
CREATE FUNCTION headrace.links(OUT worker text, OUT kind text, OUT up boolean, OUT latency_us bigint, OUT bandwidth bigint, OUT most bigint, OUT out_bytes_per_s bigint, OUT in_bytes_per_s bigint, OUT packed boolean, OUT overridden boolean) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'links is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.links();'
' on any connection, CALL headrace.show_links() answers the rows as one JSON array.';
END
$$;
CREATE FUNCTION headrace.list_views(OUT name text, OUT status text, OUT message text, OUT query text, OUT rows bigint, OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn, OUT owner text, OUT since timestamp with time zone, OUT held_by text, OUT p50_ms double precision, OUT p99_ms double precision, OUT rows_per_s double precision, OUT state_bytes bigint, OUT last_error text, OUT last_error_at timestamp with time zone) RETURNS SETOF record
LANGUAGE sql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT s.name, s.status, coalesce(s.message, nullif(concat_ws('; ', headrace.view_message(v.id), v.note), '')), coalesce(v.explain ->> 'tidy', v.query), s.rows, s.lag_ms,
s.lag_bytes, s.txid, s.lsn, pg_get_userbyid(v.owner), CASE WHEN s.status = v.status THEN v.since END,
CASE s.status
WHEN 'stopped' THEN 'no engine is connected'
WHEN 'starting' THEN 'its worker is starting, or silent'
WHEN 'pending' THEN 'it waits for its turn to be filled'
WHEN 'populating' THEN 'it is being filled'
WHEN 'paused' THEN concat_ws('; ', format('paused by %s, %s ago: resume_view lets it go on',
coalesce(pg_get_userbyid(v.paused_by), 'pause_view'),
date_trunc('second', clock_timestamp() - v.since)), g.near)
WHEN 'error' THEN 'it has stopped: see message'
WHEN 'sink_error' THEN concat_ws('; ', coalesce(
'its table is locked by ' || l.who,
CASE WHEN v.placed_parts <> '{}'
THEN format('it waits for worker %s', (SELECT string_agg(DISTINCT format('"%s"', p.value), ' or ')
FROM jsonb_each_text(v.placed_parts) p))
WHEN jsonb_typeof(v.options -> 'placement') = 'string' AND v.options ->> 'placement'
NOT IN ('main', 'auto', 'bottom_up', 'top_down', 'ifcop', 'exact')
THEN format('it waits for worker "%s"', v.options ->> 'placement') END,
'its table cannot be written now: see message'), g.near)
ELSE nullif(concat_ws('; ', coalesce(
'its table is locked by ' || l.who,
w.what || format(', for %s s', round(extract(epoch FROM clock_timestamp() - w.since))),
CASE WHEN s.lag_ms > 1000 AND n.lag_bytes > s.lag_bytes
AND n.at BETWEEN clock_timestamp() - interval '90 s' AND clock_timestamp() - interval '1 s'
THEN format('it catches up: %s behind, about %s s to go', pg_size_pretty(s.lag_bytes),
ceil(s.lag_bytes * extract(epoch FROM clock_timestamp() - n.at) / (n.lag_bytes - s.lag_bytes)))
WHEN s.lag_ms > 1000 AND b.batch_s > 1
THEN format('a batch under way for %s s', round(b.batch_s::numeric)) || coalesce(', of ' || b.at_work, '')
WHEN s.lag_ms > 1000 AND s.still IS NOT NULL
THEN format('at most %s behind: more is not known while WAL is kept for view %s', pg_size_pretty(s.lag_bytes), s.still)
WHEN s.lag_ms > 1000 THEN format('it is %s behind', pg_size_pretty(s.lag_bytes)) END),
a.what || format(', for %s', date_trunc('second', clock_timestamp() - a.since))), '') END,
CASE WHEN n.fresh THEN n.p50_ms END, CASE WHEN n.fresh THEN n.p99_ms END,
CASE WHEN n.fresh THEN n.rows_per_s ELSE 0 END, n.state_bytes, v.last_error, v.last_error_at
FROM (SELECT t.*, min(t.name) FILTER (WHERE t.status IN ('paused', 'sink_error', 'populating')) OVER () AS still
FROM headrace.view_states() WITH ORDINALITY t) s
LEFT JOIN headrace.views v ON v.id = s.id  -- row security decides
LEFT JOIN LATERAL (
SELECT m.at, m.lag_bytes, m.p50_ms, m.p99_ms, m.rows_per_s, m.state_bytes,
m.at > clock_timestamp() - interval '30 s' AS fresh
FROM headrace.samples m WHERE m.view_id = v.id AND m.step_s = 10 ORDER BY m.at DESC LIMIT 1) n ON true
LEFT JOIN LATERAL (
SELECT string_agg(format('process %s (%s)%s', k.pid, coalesce(a.usename, '?'),
coalesce(': ' || left(nullif(a.query, ''), 100), '')), '; ' ORDER BY k.pid) AS who
FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
WHERE k.locktype = 'relation' AND k.relation = v.result_oid AND k.granted
AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
AND coalesce(a.application_name, '') NOT LIKE 'headrace%'
AND s.lag_ms > 0) l ON true
LEFT JOIN headrace.held w ON w.view_id = v.id AND w.kind = 'work'
LEFT JOIN headrace.held a ON a.view_id = v.id AND a.kind = 'source'
LEFT JOIN LATERAL (
SELECT format('about %s %% of wal_budget_bytes (%s) is kept for it: beyond that it is given up',
round(100 * k.bytes / m.value::numeric), pg_size_pretty(m.value::bigint)) AS near
FROM headrace.meta m
CROSS JOIN (SELECT least(s.lag_bytes, (
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() END - r.confirmed_flush_lsn
FROM headrace.meta n JOIN pg_replication_slots r ON r.slot_name = n.value
WHERE n.key = 'slot_name' AND EXISTS (
SELECT FROM headrace.meta w WHERE w.key = 'wal_retention' AND w.value = 'source'))) AS bytes) k
WHERE m.key = 'wal_budget_bytes' AND m.value::bigint > 0 AND k.bytes > m.value::bigint / 2) g ON true
CROSS JOIN (SELECT headrace.batch_s() AS batch_s, headrace.at_work() AS at_work) b
ORDER BY s.ordinality
$$;
CREATE FUNCTION headrace.memory(OUT part text, OUT view text, OUT bytes bigint, OUT limit_bytes bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'memory is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.memory();'
' on any connection, CALL headrace.show_memory() answers the rows as one JSON array.';
END
$$;
CREATE PROCEDURE headrace.pause_view(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.queues(OUT queue text, OUT reader text, OUT node text, OUT queued_rows bigint, OUT queued_bytes bigint, OUT blocks bigint, OUT contiguous boolean, OUT resident_bytes bigint, OUT base_txid bigint, OUT front_txid bigint, OUT tail_txid bigint, OUT head_txid bigint, OUT behind_bytes bigint, OUT kind text, OUT priority bigint, OUT resident_pct bigint, OUT running boolean) RETURNS SETOF record
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
CREATE FUNCTION headrace.rebalance(apply boolean DEFAULT false, OUT view text, OUT worker_now text, OUT worker_then text, OUT busy_us bigint, OUT moved boolean, OUT problem text) RETURNS SETOF record
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
CREATE FUNCTION headrace.refuse_rows() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
IF pg_catalog.current_setting('headrace.filling', true) OPERATOR(pg_catalog.=) 'on' THEN
RETURN NULL;
END IF;
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = pg_catalog.format('table %I.%I is a stand-in: its rows are in another database',
TG_TABLE_SCHEMA, TG_TABLE_NAME),
HINT = 'Write to the table there; views of Headrace read it.';
END
$$;
CREATE PROCEDURE headrace.remove_worker(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.rename_view(IN name text, IN new_name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.resume_view(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.resync_view(IN name text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.set_history(IN name text, IN keep text DEFAULT NULL::text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.set_latency(IN name text, IN latency_ms bigint DEFAULT '0'::bigint)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.set_owner(IN name text, IN role text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.set_placement(IN name text, IN worker text)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_advice(IN query text DEFAULT NULL::text, INOUT advice jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_batches(INOUT batches jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_links(INOUT links jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_memory(INOUT memory jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_placement(IN name_or_query text, IN strategy text DEFAULT NULL::text, INOUT placement jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_queues(INOUT queues jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_rebalance(IN apply boolean DEFAULT false, INOUT moves jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_sources(INOUT sources jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_view_stats(IN name text, INOUT stats jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE PROCEDURE headrace.show_workers(INOUT workers jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.sources(OUT source text, OUT state text, OUT "position" text, OUT lag_bytes bigint, OUT changes bigint, OUT heard_at text, OUT views bigint, OUT tables bigint, OUT problem text) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'sources is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.sources();'
' on any connection, CALL headrace.show_sources() answers the rows as one JSON array.';
END
$$;
CREATE FUNCTION headrace.stamp_command() RETURNS trigger
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
BEGIN
IF current_setting('session_replication_role') = 'replica' THEN
RETURN NULL;
END IF;
NEW.caller := quote_ident(CURRENT_USER)::regrole;
NEW.status := 'pending';
NEW.created_at := now();
IF (SELECT count(*) FROM headrace.commands c
WHERE c.caller = NEW.caller AND c.status IN ('pending', 'running')) >= 1000 THEN
RAISE EXCEPTION USING ERRCODE = '53400',
MESSAGE = 'role ' || quote_ident(CURRENT_USER) || ' has 1000 calls that wait and may have no more',
HINT = 'Wait for some.';
END IF;
RETURN NEW;
END
$$;
CREATE FUNCTION headrace.status(OUT fact text, OUT value text, OUT ok boolean, OUT hint text) RETURNS SETOF record
LANGUAGE sql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$SELECT 1$$;
CREATE FUNCTION headrace.submit(procedure text, arguments jsonb, settings jsonb) RETURNS bigint
LANGUAGE plpgsql
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
DECLARE
command bigint;
waited  int := 0;
BEGIN
IF pg_column_size(arguments) > 8388608 THEN
RAISE EXCEPTION USING ERRCODE = '54000',
MESSAGE = 'the arguments of the call are too large',
DETAIL = 'All together may have 8 MB.';
END IF;
WHILE NOT headrace.engine_running() LOOP
IF waited >= 30 THEN
RAISE EXCEPTION USING ERRCODE = '57P03',
MESSAGE = 'headrace is not running',
DETAIL = 'No engine is connected to this database.',
HINT = 'Start it with `headrace start --source …` and call again.';
END IF;
waited := waited + 1;
PERFORM pg_sleep(0.1);
PERFORM pg_stat_clear_snapshot();
END LOOP;
INSERT INTO headrace.commands AS c (procedure, arguments, settings)
VALUES (procedure, arguments, settings)
RETURNING c.id INTO command;
IF pg_notification_queue_usage() < 0.5 THEN
PERFORM pg_notify('headrace_commands', command::text);
END IF;
RETURN command;
END
$$;
CREATE FUNCTION headrace.table_mark(wanted oid) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RETURN (
SELECT ROW(c.xmin,
ARRAY(SELECT a.xmin FROM pg_catalog.pg_attribute a
WHERE a.attrelid OPERATOR(pg_catalog.=) wanted
AND a.attnum OPERATOR(pg_catalog.>) 0),
CASE WHEN c.relhastriggers THEN
ARRAY(SELECT t.xmin FROM pg_catalog.pg_trigger t
WHERE t.tgrelid OPERATOR(pg_catalog.=) wanted) END,
CASE WHEN c.relhasrules THEN
ARRAY(SELECT r.xmin FROM pg_catalog.pg_rewrite r
WHERE r.ev_class OPERATOR(pg_catalog.=) wanted) END,
CASE WHEN c.relhassubclass THEN
ARRAY(SELECT h.xmin FROM pg_catalog.pg_inherits h
WHERE h.inhparent OPERATOR(pg_catalog.=) wanted) END)::pg_catalog.text
FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) wanted);
END
$$;
CREATE PROCEDURE headrace.verify(IN name text, INOUT differences jsonb DEFAULT NULL::jsonb)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.verify_view(name text, OUT surplus bigint, OUT missing bigint, OUT contents text) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $_$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'verify_view is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: the proof takes a later snapshot than this statement reads by.',
HINT = pg_catalog.format(
'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.verify_view(%1$L)'
' and count or filter its rows in the client; on any connection, CALL headrace.verify(%1$L)'
' answers them as one JSON array, [] if there are none.', name);
END
$_$;
CREATE FUNCTION headrace.view_as_of(view anyelement, txid bigint DEFAULT NULL::bigint, lsn pg_lsn DEFAULT NULL::pg_lsn, at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
SET "TimeZone" TO 'UTC'
SET "DateStyle" TO 'ISO, YMD'
SET "IntervalStyle" TO 'postgres'
SET extra_float_digits TO '3'
SET bytea_output TO 'hex'
SET lc_monetary TO 'C'
SET xmloption TO 'content'
SET array_nulls TO 'on'
AS $_$
#variable_conflict use_column
DECLARE
named  regclass;
kept   headrace.histories;
moved  headrace.progress;
wanted text;
bound  bigint;
BEGIN
SELECT t.typrelid INTO named FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
WHERE t.oid = pg_typeof(view) AND c.relkind = 'r';
IF named IS NULL OR num_nonnulls(view_as_of.txid, view_as_of.lsn, view_as_of.at) <> 1 THEN
RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'view_as_of takes the row type of a view, and one of txid, lsn, at',
HINT = 'Write for example SELECT * FROM headrace.view_as_of(NULL::v, txid => 42).';
END IF;
kept := headrace.history_of(named);
SELECT p.* INTO moved FROM headrace.progress p WHERE p.view_id = kept.view_id;
IF view_as_of.txid IS NOT NULL THEN
wanted := format('txid %s', view_as_of.txid);
bound := view_as_of.txid;
ELSIF view_as_of.lsn IS NOT NULL THEN
wanted := format('LSN %s', view_as_of.lsn);
IF view_as_of.lsn BETWEEN kept.first_lsn AND moved.lsn THEN
SELECT coalesce(min(c.txid) - 1, moved.txid + kept.shift) INTO bound FROM headrace.history c
WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.lsn > view_as_of.lsn;
END IF;
ELSE
wanted := format('%s', view_as_of.at);
IF view_as_of.at BETWEEN kept.first_at AND moved.source_commit_at THEN
SELECT coalesce(min(c.txid) - 1, moved.txid + kept.shift) INTO bound FROM headrace.history c
WHERE c.history_id = kept.id AND c.txid > kept.first_txid AND c.commit_at > view_as_of.at;
END IF;
END IF;
IF bound IS NULL OR bound < kept.first_txid OR bound > moved.txid + kept.shift THEN
PERFORM headrace.history_lost(named, wanted, moved.txid + kept.shift);
END IF;
RETURN QUERY EXECUTE format('
SELECT (x.found).* FROM (
SELECT r.image::%1$s AS found FROM (
SELECT i.image, headrace.history_times(sum(i.weight)) AS times FROM (
SELECT (t.*)::text COLLATE "C" AS image, 1 AS weight FROM ONLY %1$s t
UNION ALL
SELECT (d.data::%1$s)::text COLLATE "C", -d.weight FROM headrace.history c
CROSS JOIN LATERAL unnest(c.weights, c.data) AS d (weight, data)
WHERE c.history_id = $1 AND c.txid > $2) i
GROUP BY i.image) r
CROSS JOIN LATERAL generate_series(1, r.times)
OFFSET 0) x', named) USING kept.id, bound;
END
$_$;
CREATE FUNCTION headrace.view_changes(view regclass, since bigint DEFAULT 0) RETURNS TABLE(txid bigint, lsn pg_lsn, commit_at timestamp with time zone, weight bigint, data text)
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$
#variable_conflict use_column
DECLARE
kept headrace.histories;
last bigint;
BEGIN
kept := headrace.history_of(view);
last := headrace.view_txid(view);
IF since IS NULL OR since > last OR since <> 0 AND since < kept.first_txid THEN
PERFORM headrace.history_lost(view, format('txid %s', coalesce(since::text, 'NULL')), last);
END IF;
RETURN QUERY
SELECT c.txid, c.lsn, c.commit_at, r.weight, r.data
FROM headrace.history c
CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
WHERE c.history_id = kept.id AND c.txid > greatest(since, kept.first_txid)
ORDER BY c.txid, c.part, r.place;
END
$$;
CREATE FUNCTION headrace.view_message(view_id bigint) RETURNS text
LANGUAGE sql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT nullif(concat_ws(' ', nullif(concat_ws('; ',
nullif(concat_ws(' at ', v.message, v.culprit), ''), v.detail, v.hint), ''), v.tried), '')
FROM headrace.views v WHERE v.id = view_id
$$;
CREATE FUNCTION headrace.view_states(OUT id bigint, OUT name text, OUT status text, OUT message text, OUT rows bigint, OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn) RETURNS SETOF record
LANGUAGE sql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $_$
SELECT pg_stat_clear_snapshot();
SELECT v.id, format('%I.%I', v.schema_name, v.view_name), k.status,
CASE WHEN k.orphan THEN format('the role that owned it was dropped; CALL headrace.set_owner(%L, role)'
' gives it to another.', format('%I.%I', v.schema_name, v.view_name))
WHEN k.status = v.status THEN NULL
WHEN k.status = 'stopped' THEN 'no engine is connected to this database'
WHEN k.status = 'starting' THEN 'the worker is not connected, or silent'
ELSE format('result table "%s"."%s" was dropped; CALL headrace.resync_view(%L) fills it anew.',
v.schema_name, v.view_name, format('%I.%I', v.schema_name, v.view_name)) END,
CASE WHEN c.reltuples >= 0 OR pg_stat_get_live_tuples(c.oid) > 0
THEN greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid)) END,
CASE WHEN p.lsn IS NULL THEN NULL
WHEN k.covered >= w.lsn THEN 0
WHEN k.status <> 'running' THEN k.since_ms
WHEN s.confirmed >= p.lsn THEN greatest(s.flush_ms, e.busy_ms, 0)
ELSE k.since_ms END,
greatest(w.lsn - k.covered, 0)::bigint,
p.txid, p.lsn
FROM headrace.views v
LEFT JOIN headrace.progress p ON p.view_id = v.id
LEFT JOIN pg_class c ON c.oid = v.result_oid
LEFT JOIN pg_roles o ON o.oid = v.owner
CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
ELSE pg_current_wal_lsn() END AS lsn) w
LEFT JOIN (SELECT r.confirmed_flush_lsn AS confirmed,
(extract(epoch FROM a.flush_lag) * 1000)::bigint AS flush_ms
FROM headrace.meta m
JOIN pg_replication_slots r ON r.slot_name = m.value
LEFT JOIN pg_stat_replication a ON a.pid = r.active_pid
WHERE m.key = 'slot_name') s ON true
LEFT JOIN (SELECT a.state IN ('active', 'disabled')
OR a.state_change > clock_timestamp() - interval '10 s' AS heard,
(greatest(extract(epoch FROM clock_timestamp() - a.xact_start),
extract(epoch FROM clock_timestamp())
- substring(a.application_name FROM 'busy since ([0-9.]+)$')::numeric)
* 1000)::bigint AS busy_ms
FROM headrace.meta m
JOIN pg_stat_activity a
ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
WHERE m.key = 'worker') e ON true
CROSS JOIN LATERAL (
SELECT v.owner IS NOT NULL AND o.oid IS NULL AS orphan,
CASE WHEN v.owner IS NOT NULL AND o.oid IS NULL THEN 'error'
WHEN v.status IN ('paused', 'error') THEN v.status
WHEN v.status = 'running' AND c.oid IS NULL THEN 'error'
WHEN e.heard AND (p.epoch > 0 OR v.status <> 'running') THEN v.status
WHEN e.heard IS NULL AND NOT headrace.engine_running() THEN 'stopped'
WHEN v.status = 'running' THEN 'starting'
ELSE v.status END AS status,
CASE WHEN v.status = 'running' THEN greatest(p.lsn, s.confirmed)
ELSE p.lsn END AS covered,
greatest(extract(epoch FROM clock_timestamp()
- coalesce(p.source_commit_at, p.applied_at, v.created_at)) * 1000, 0)::bigint
AS since_ms) k
ORDER BY v.schema_name, v.view_name
$_$;
CREATE FUNCTION headrace.view_stats(name text, OUT node text, OUT collection text, OUT shared boolean, OUT worker text, OUT rows_in bigint, OUT rows_out bigint, OUT batches bigint, OUT busy_us bigint, OUT cpu_us bigint, OUT state_rows bigint, OUT state_bytes bigint, OUT state_exact boolean, OUT queued_rows bigint, OUT queued_bytes bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $_$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'view_stats is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = pg_catalog.format(
'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.view_stats(%1$L);'
' on any connection, CALL headrace.show_view_stats(%1$L) answers the rows as one JSON array.', name);
END
$_$;
CREATE FUNCTION headrace.view_txid(view regclass) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path TO 'pg_catalog', 'pg_temp'
SET row_security TO 'on'
AS $$
DECLARE
kept headrace.histories;
BEGIN
kept := headrace.history_of(view);
RETURN (SELECT p.txid + kept.shift FROM headrace.progress p WHERE p.view_id = kept.view_id);
END
$$;
CREATE PROCEDURE headrace.wait_for(IN name text, IN lsn pg_lsn DEFAULT NULL::pg_lsn, IN timeout interval DEFAULT NULL::interval)
LANGUAGE plpgsql
AS $$BEGIN END$$;
CREATE FUNCTION headrace.worker_running() RETURNS boolean
LANGUAGE sql SECURITY DEFINER
SET search_path TO 'pg_catalog', 'pg_temp'
AS $$
SELECT EXISTS (
SELECT FROM headrace.meta m
JOIN pg_stat_activity a ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
WHERE m.key = 'worker'
AND (a.state IN ('active', 'disabled') OR a.state_change > clock_timestamp() - interval '10 s'))
$$;
CREATE FUNCTION headrace.workers(OUT worker text, OUT state text, OUT pid bigint, OUT views bigint, OUT memory_bytes bigint, OUT since text, OUT address text) RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RAISE EXCEPTION USING ERRCODE = '0A000',
MESSAGE = 'workers is answered only on the port of headrace, as a statement of its own',
DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.workers();'
' on any connection, CALL headrace.show_workers() answers the rows as one JSON array.';
END
$$;
CREATE TABLE headrace.carrier (
single boolean DEFAULT true NOT NULL,
token text NOT NULL,
CONSTRAINT carrier_single_check CHECK (single)
);
CREATE TABLE headrace.commands (
id bigint NOT NULL,
procedure text NOT NULL,
arguments jsonb NOT NULL,
caller oid DEFAULT (quote_ident((CURRENT_USER)::text))::regrole NOT NULL,
settings jsonb NOT NULL,
status text DEFAULT 'pending'::text NOT NULL,
progress jsonb,
result jsonb,
error jsonb,
created_at timestamp with time zone DEFAULT now() NOT NULL,
finished_at timestamp with time zone,
CONSTRAINT commands_arguments_check CHECK ((pg_column_size(arguments) <= 8388608)),
CONSTRAINT commands_procedure_check CHECK ((octet_length(procedure) <= 63)),
CONSTRAINT commands_settings_check CHECK ((pg_column_size(settings) <= 65536)),
CONSTRAINT commands_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'done'::text, 'failed'::text])))
);
ALTER TABLE headrace.commands ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
SEQUENCE NAME headrace.commands_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE headrace.facts (
fact text NOT NULL,
value text NOT NULL,
ok boolean,
hint text,
at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE headrace.feeds ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
SEQUENCE NAME headrace.feeds_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1
);
CREATE TABLE headrace.held (
view_id bigint NOT NULL,
kind text NOT NULL,
what text NOT NULL,
since timestamp with time zone NOT NULL,
CONSTRAINT held_kind_check CHECK ((kind = ANY (ARRAY['work'::text, 'source'::text])))
);
CREATE SEQUENCE headrace.histories_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE headrace.histories_id_seq OWNED BY headrace.histories.id;
CREATE TABLE headrace.history (
history_id bigint NOT NULL,
txid bigint NOT NULL,
part integer NOT NULL,
lsn pg_lsn NOT NULL,
commit_at timestamp with time zone NOT NULL,
row_count integer NOT NULL,
weights bigint[] NOT NULL,
data text[] NOT NULL
);
CREATE TABLE headrace.made_schemas (
schema_oid oid NOT NULL,
owner oid NOT NULL
);
CREATE TABLE headrace.meta (
key text NOT NULL,
value text
);
CREATE TABLE headrace.nodes (
name text NOT NULL,
added_at timestamp with time zone DEFAULT now() NOT NULL,
token bytea,
address text,
certificate text,
seen_at timestamp with time zone,
latency_ms bigint,
bytes_per_s bigint,
capacity integer DEFAULT 100 NOT NULL,
lost_at timestamp with time zone,
CONSTRAINT nodes_name_check CHECK (((name ~ '^[a-z][a-z0-9_]{0,19}$'::text) AND (name <> 'main'::text)))
);
CREATE TABLE headrace.origins (
name text NOT NULL,
dsn text NOT NULL,
slot text NOT NULL,
system_id text NOT NULL,
timeline integer NOT NULL,
published text NOT NULL,
"position" pg_lsn NOT NULL,
wanted pg_lsn NOT NULL,
hold pg_lsn,
state text DEFAULT 'starting'::text NOT NULL,
problem text,
changed bigint DEFAULT 0 NOT NULL,
heard_at timestamp with time zone,
added_at timestamp with time zone DEFAULT now() NOT NULL,
CONSTRAINT origins_name_check CHECK (((name ~ '^[a-z][a-z0-9_]{0,19}$'::text) AND (name <> 'main'::text))),
CONSTRAINT origins_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'down'::text, 'lost'::text])))
);
CREATE TABLE headrace.points (
name text NOT NULL,
view_id bigint NOT NULL,
keep interval,
storage_key name,
created_at timestamp with time zone DEFAULT now() NOT NULL,
CONSTRAINT points_name_check CHECK (((length(name) >= 1) AND (length(name) <= 63)))
);
CREATE TABLE headrace.progress (
view_id bigint NOT NULL,
epoch bigint DEFAULT 0 NOT NULL,
txid bigint DEFAULT 0 NOT NULL,
attempt integer DEFAULT 0 NOT NULL,
lsn pg_lsn,
source_commit_at timestamp with time zone,
applied_at timestamp with time zone
)
WITH (fillfactor='50');
CREATE TABLE headrace.samples (
view_id bigint NOT NULL,
step_s integer NOT NULL,
at timestamp with time zone NOT NULL,
batches bigint,
rows_per_s double precision,
p50_ms double precision,
p99_ms double precision,
max_ms double precision,
lag_ms bigint,
lag_bytes bigint,
state_bytes bigint
);
CREATE TABLE headrace.stand_ins (
table_oid oid NOT NULL,
source text NOT NULL,
origin_oid oid NOT NULL,
schema_name text NOT NULL,
table_name text NOT NULL
);
CREATE TABLE headrace.view_tables (
view_id bigint NOT NULL,
table_oid oid NOT NULL,
schema_name name NOT NULL,
table_name name NOT NULL
);
CREATE TABLE headrace.view_uses (
view_id bigint NOT NULL,
result_oid oid NOT NULL
);
CREATE TABLE headrace.views (
id bigint NOT NULL,
schema_name name NOT NULL,
view_name name NOT NULL,
query text NOT NULL,
columns jsonb,
plan jsonb,
explain jsonb,
options jsonb DEFAULT '{}'::jsonb NOT NULL,
settings jsonb DEFAULT '{}'::jsonb NOT NULL,
owner regrole,
result_oid oid,
start_lsn pg_lsn,
status text DEFAULT 'pending'::text NOT NULL,
message text,
sqlstate text,
block boolean DEFAULT true NOT NULL,
created_at timestamp with time zone DEFAULT now() NOT NULL,
watched jsonb,
canonical text,
named jsonb,
revision integer DEFAULT 0 NOT NULL,
kept jsonb,
detail text,
hint text,
culprit text,
tried text,
note text,
since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
last_error text,
last_error_at timestamp with time zone,
placed_parts jsonb DEFAULT '{}'::jsonb NOT NULL,
paused_by regrole,
CONSTRAINT views_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'populating'::text, 'running'::text, 'paused'::text, 'error'::text, 'sink_error'::text])))
);
CREATE SEQUENCE headrace.views_id_seq
START WITH 1
INCREMENT BY 1
NO MINVALUE
NO MAXVALUE
CACHE 1;
ALTER SEQUENCE headrace.views_id_seq OWNED BY headrace.views.id;
ALTER TABLE ONLY headrace.histories ALTER COLUMN id SET DEFAULT nextval('headrace.histories_id_seq'::regclass);
ALTER TABLE ONLY headrace.views ALTER COLUMN id SET DEFAULT nextval('headrace.views_id_seq'::regclass);
INSERT INTO headrace.facts VALUES ('workers', 'main up', true, NULL, '2026-11-25 13:05:39.3957+00');
INSERT INTO headrace.facts VALUES ('memory', 'about 0 % of 1024 MB', true, NULL, '2026-11-25 13:05:39.395795+00');
INSERT INTO headrace.feeds OVERRIDING SYSTEM VALUE VALUES (1, 'f', 1, 10, 0, '2026-11-25 13:05:40.121865+00');
INSERT INTO headrace.histories VALUES (1, 1, 16755, '02:00:00', 0, 0, '0/195F520', '2026-11-25 13:05:40.046143+00');
INSERT INTO headrace.history VALUES (1, 1, 0, '0/197EA08', '2026-11-25 13:05:40.44402+00', 6, '{-1,1,-1,1,-1,1}', '{"(c2,17,425)","(c2,17,428)","(c0,17,442)","(c0,17,445)","(c1,16,408)","(c1,16,410)"}');
INSERT INTO headrace.meta VALUES ('version', '2');
INSERT INTO headrace.meta VALUES ('catalog_oid', '16394');
INSERT INTO headrace.meta VALUES ('slot_name', 'headrace_h_test_6b098bbe6327');
INSERT INTO headrace.meta VALUES ('release', '0.2.0');
INSERT INTO headrace.meta VALUES ('wal_budget_bytes', '10737418240');
INSERT INTO headrace.meta VALUES ('wal_retention', 'source');
INSERT INTO headrace.meta VALUES ('epoch', '1');
INSERT INTO headrace.meta VALUES ('worker', '30284 1795611939.217368');
INSERT INTO headrace.meta VALUES ('commander', '30324 1795611939.336446');
INSERT INTO headrace.points VALUES ('p', 1, NULL, 'country', '2026-11-25 13:05:40.099686+00');
INSERT INTO headrace.progress VALUES (1, 1, 1, 0, '0/197EA08', '2026-11-25 13:05:40.44402+00', '2026-11-25 13:05:40.507188+00');
INSERT INTO headrace.progress VALUES (2, 1, 1, 0, '0/197EA08', '2026-11-25 13:05:40.44402+00', '2026-11-25 13:05:40.507206+00');
INSERT INTO headrace.view_tables VALUES (1, 16713, 'public', 'customers');
INSERT INTO headrace.view_tables VALUES (1, 16720, 'public', 'orders');
INSERT INTO headrace.view_tables VALUES (2, 16713, 'public', 'customers');
INSERT INTO headrace.view_tables VALUES (2, 16720, 'public', 'orders');
INSERT INTO headrace.view_uses VALUES (2, 16755);
INSERT INTO headrace.views VALUES (1, 'public', 'revenue', 'SELECT c.country, count(*) AS orders, sum(o.amount) AS amount FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.country', '[{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}, {"oid": 20, "kind": "Field", "name": "orders", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}]', '{"kind": "PhysicalPlan", "nodes": [{"id": "source_1", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "customer_id", "attnum": 2, "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "SourceColumn", "name": "amount", "attnum": 3, "typmod": -1, "collation": 0}], "pushdown": [], "table_oid": 16720, "table_name": "orders", "schema_name": "public", "full_identity": false}, {"id": "source_2", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}, {"oid": 25, "kind": "SourceColumn", "name": "country", "attnum": 2, "typmod": -1, "collation": 100}], "pushdown": [], "table_oid": 16713, "table_name": "customers", "schema_name": "public", "full_identity": false}, {"id": "filter_1", "kind": "Filter", "input": "source_1", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "filter_2", "kind": "Filter", "input": "source_2", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "join_1", "op": "inner", "kind": "Join", "left": "filter_1", "right": "filter_2", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}, {"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "residual": [], "left_keys": [0], "null_safe": [], "right_keys": [0]}, {"id": "map_1", "kind": "Map", "input": "join_1", "schema": [{"oid": 25, "kind": "Field", "name": "key_0", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "key_1", "typmod": -1, "collation": 0}], "expressions": [{"oid": 25, "kind": "Column", "index": 3, "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Column", "index": 1, "typmod": -1, "collation": 0}]}, {"id": "reduce_1", "keys": [0], "kind": "Reduce", "input": "map_1", "always": [], "schema": [{"oid": 25, "kind": "Field", "name": "c.country", "typmod": -1, "collation": 100}, {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}], "aggregates": [{"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 20, "kind": "Field", "name": "count(*)", "typmod": -1, "collation": 0}, "trusted": true, "argument": null, "distinct": false, "function": "count_star", "shows_order": false}, {"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}, "trusted": true, "argument": 1, "distinct": false, "function": "sum", "shows_order": false}]}, {"id": "sink_1", "key": [], "kind": "Sink", "input": "reduce_1", "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}, {"oid": 20, "kind": "Field", "name": "orders", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}]}], "version": 2}', '{"key": "could have key (country), proved; that there is no NULL in country would be checked", "tidy": "SELECT\n  c.country,\n  COUNT(*) AS orders,\n  SUM(o.amount) AS amount\nFROM orders AS o\nJOIN customers AS c\n  ON c.id = o.customer_id\nGROUP BY\n  c.country", "graphs": [{"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Project", "detail": "[c.country, count(*) AS orders, sum(o.amount) AS amount]", "inputs": ["2"], "columns": [{"name": "country", "type": "text"}, {"name": "orders", "type": "bigint"}, {"name": "amount", "type": "numeric"}]}, {"id": "2", "kind": "Aggregate", "detail": "[count(*), sum(o.amount)] by [c.country]", "inputs": ["3"], "columns": [{"name": "c.country", "type": "text"}, {"name": "count(*)", "type": "bigint"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "3", "kind": "InnerJoin", "detail": "c.id = o.customer_id", "inputs": ["4", "5"], "columns": [{"name": "id", "type": "integer"}, {"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}, {"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "4", "kind": "Scan", "detail": "public.orders AS o [id, customer_id, amount]", "columns": [{"name": "id", "type": "integer"}, {"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}, {"id": "5", "kind": "Scan", "detail": "public.customers AS c [id, country]", "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}], "notes": [], "stage": "logical", "version": 1}, {"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Aggregate", "detail": "[count(*), sum(o.amount)] by [c.country]", "inputs": ["2"], "columns": [{"name": "c.country", "type": "text"}, {"name": "count(*)", "type": "bigint"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "2", "kind": "InnerJoin", "detail": "c.id = o.customer_id", "inputs": ["3", "4"], "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}, {"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "3", "kind": "Scan", "detail": "public.orders AS o [customer_id, amount] filter o.customer_id IS NOT NULL", "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}, {"id": "4", "kind": "Scan", "detail": "public.customers AS c [id, country] filter c.id IS NOT NULL", "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}], "notes": [], "stage": "optimised", "version": 1}, {"root": "sink_1", "named": true, "nodes": [{"id": "sink_1", "cost": "O(changed result rows)", "kind": "Sink", "detail": "[country, orders, amount]", "inputs": ["reduce_1"], "columns": [{"name": "country", "type": "text"}, {"name": "orders", "type": "bigint"}, {"name": "amount", "type": "numeric"}]}, {"id": "reduce_1", "cost": "O(changes + touched groups)", "kind": "Reduce", "state": "groups", "detail": "[count(*), sum(o.amount)] by [c.country]", "inputs": ["map_1"], "columns": [{"name": "c.country", "type": "text"}, {"name": "count(*)", "type": "bigint"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "map_1", "cost": "O(changes)", "kind": "Map", "detail": "[c.country, o.amount]", "inputs": ["join_1"], "columns": [{"name": "key_0", "type": "text"}, {"name": "key_1", "type": "numeric"}]}, {"id": "join_1", "cost": "O(changes × matches)", "kind": "Join", "state": "rows of both sides", "detail": "on c.id = o.customer_id", "inputs": ["filter_1", "filter_2"], "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}, {"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "filter_2", "cost": "O(changes)", "kind": "Filter", "detail": "c.id IS NOT NULL", "inputs": ["source_2"], "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "filter_1", "cost": "O(changes)", "kind": "Filter", "detail": "o.customer_id IS NOT NULL", "inputs": ["source_1"], "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}, {"id": "source_2", "cost": "O(changes), one read per changed row", "kind": "Source", "state": "all rows", "detail": "public.customers [id, country] key id", "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "source_1", "cost": "O(changes), one read per changed row", "kind": "Source", "state": "all rows", "detail": "public.orders [customer_id, amount] key id", "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}], "notes": [], "stage": "physical", "version": 1}, {"root": "query", "named": false, "nodes": [{"id": "query", "kind": "Query", "inputs": ["column_1", "column_2", "column_3"]}, {"id": "column_1", "kind": "Column", "more": {"16713.2": "same"}, "detail": "country", "inputs": ["16713.2"]}, {"id": "column_2", "kind": "Column", "more": {"16713.0": "aggregated", "16720.0": "aggregated"}, "detail": "orders", "inputs": ["16713.0", "16720.0"]}, {"id": "column_3", "kind": "Column", "more": {"16720.3": "aggregated"}, "detail": "amount", "inputs": ["16720.3"]}, {"id": "16713.0", "kind": "TableColumn", "detail": "public.customers.*"}, {"id": "16713.2", "kind": "TableColumn", "detail": "public.customers.country"}, {"id": "16720.0", "kind": "TableColumn", "detail": "public.orders.*"}, {"id": "16720.3", "kind": "TableColumn", "detail": "public.orders.amount"}], "notes": [], "stage": "lineage", "version": 1}], "lineage": "country <- public.customers.country\norders <- public.customers.* (aggregated), public.orders.* (aggregated)\namount <- public.orders.amount (aggregated)", "logical": "Project [c.country, count(*) AS orders, sum(o.amount) AS amount]\n  Aggregate [count(*), sum(o.amount)] by [c.country]\n    InnerJoin c.id = o.customer_id\n      Scan public.orders AS o [id, customer_id, amount]\n      Scan public.customers AS c [id, country]", "origins": [{"from": [{"how": "same", "oid": 16713, "name": "country", "table": "customers", "attnum": 2, "schema": "public"}], "column": "country"}, {"from": [{"how": "aggregated", "oid": 16713, "name": "", "table": "customers", "attnum": 0, "schema": "public"}, {"how": "aggregated", "oid": 16720, "name": "", "table": "orders", "attnum": 0, "schema": "public"}], "column": "orders"}, {"from": [{"how": "aggregated", "oid": 16720, "name": "amount", "table": "orders", "attnum": 3, "schema": "public"}], "column": "amount"}], "sources": "Table public.customers by key\nTable public.orders by key", "physical": "sink_1 Sink [country, orders, amount]  | O(changed result rows)\n  reduce_1 Reduce [count(*), sum(o.amount)] by [c.country]  | keeps groups; O(changes + touched groups)\n    map_1 Map [c.country, o.amount]  | O(changes)\n      join_1 Join on c.id = o.customer_id  | keeps rows of both sides; O(changes × matches)\n        filter_1 Filter o.customer_id IS NOT NULL  | O(changes)\n          source_1 Source public.orders [customer_id, amount] k…  | keeps all rows; O(changes), one read per changed row\n        filter_2 Filter c.id IS NOT NULL  | O(changes)\n          source_2 Source public.customers [id, country] key id  | keeps all rows; O(changes), one read per changed row", "optimised": "Aggregate [count(*), sum(o.amount)] by [c.country]\n  InnerJoin c.id = o.customer_id\n    Scan public.orders AS o [customer_id, amount] filter o.customer_id IS NOT NULL\n    Scan public.customers AS c [id, country] filter c.id IS NOT NULL"}', '{"history": "2 h"}', '{"lc_time": "C.UTF-8", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "xmlbinary": "base64", "xmloption": "content", "lc_numeric": "C.UTF-8", "lc_monetary": "C.UTF-8", "bytea_output": "hex", "IntervalStyle": "postgres", "extra_float_digits": "1", "quote_all_identifiers": "off", "timezone_abbreviations": "Default", "default_text_search_config": "pg_catalog.english"}', 'postgres', 16755, '0/195F520', 'running', NULL, NULL, true, '2026-11-25 13:05:39.75788+00', '{"seen": "750:750:", "lacks": [], "owner": 10, "views": {}, "rights": [["owner", 10, 0, [], 0], ["reader", 10, 0, [], 0], ["execute", 10, 65, [], 0], ["execute", 10, 2114, [], 0], ["execute", 10, 2803, [], 0], ["open", 10, 16713, [], 0], ["open", 10, 16720, [], 0], ["select", 10, 16713, [1, 2], 0], ["select", 10, 16720, [2, 3], 0], ["usage", 10, 2200, [], 0]], "tables": {"16713": {"key": [1], "kind": "r", "name": "customers", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "742", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "country", "type": 25, "typmod": -1, "written": "742", "not_null": false, "collation": 100, "generated": "", "expression": null}}, "storage": 16713, "identity": "d", "partition": false, "published": {"oid": 16753, "whole": true}, "attributes": [[1, "id", true, "742"], [2, "country", true, "742"]], "persistence": "p"}, "16720": {"key": [1], "kind": "r", "name": "orders", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "742", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "customer_id", "type": 23, "typmod": -1, "written": "742", "not_null": false, "collation": 0, "generated": "", "expression": null}, "3": {"name": "amount", "type": 1700, "typmod": -1, "written": "742", "not_null": false, "collation": 0, "generated": "", "expression": null}}, "storage": 16720, "identity": "d", "partition": false, "published": {"oid": 16754, "whole": true}, "attributes": [[1, "id", true, "742"], [2, "customer_id", true, "742"], [3, "amount", true, "742"]], "persistence": "p"}}, "results": {}, "relations": {"16713": {"name": "public.customers", "members": [16713], "inherits": true}, "16720": {"name": "public.orders", "members": [16720], "inherits": true}}, "definitions": {"deep": false, "words": [], "called": null, "objects": {}}, "publication": {"oid": 16712, "whole": true, "written": "738"}}', 'SELECT c.country,
count(*) AS orders,
sum(o.amount) AS amount
FROM (public.orders o
JOIN public.customers c ON ((c.id = o.customer_id)))
GROUP BY c.country;', '[{"oid": 16715, "kind": "type", "name": "customers", "schema": "public"}, {"oid": 16722, "kind": "type", "name": "orders", "schema": "public"}, {"oid": 16713, "name": "customers", "count": 1, "schema": "public", "columns": [[1, "id"], [2, "country"]]}, {"oid": 16720, "name": "orders", "count": 1, "schema": "public", "columns": [[1, "id"], [2, "customer_id"], [3, "amount"]]}]', 0, '{"indexes": [["revenue_country_idx", "USING btree (country)"]], "readers": null}', NULL, NULL, NULL, NULL, NULL, '2026-11-25 13:05:40.009901+00', NULL, NULL, '{}', NULL);
INSERT INTO headrace.views VALUES (2, 'public', 'large', 'SELECT country FROM revenue WHERE amount > 400', '[{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}]', '{"kind": "PhysicalPlan", "nodes": [{"id": "source_1", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "customer_id", "attnum": 2, "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "SourceColumn", "name": "amount", "attnum": 3, "typmod": -1, "collation": 0}], "pushdown": [], "table_oid": 16720, "table_name": "orders", "schema_name": "public", "full_identity": false}, {"id": "source_2", "key": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}], "kind": "Source", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "wanted": [], "columns": [{"oid": 23, "kind": "SourceColumn", "name": "id", "attnum": 1, "typmod": -1, "collation": 0}, {"oid": 25, "kind": "SourceColumn", "name": "country", "attnum": 2, "typmod": -1, "collation": 100}], "pushdown": [], "table_oid": 16713, "table_name": "customers", "schema_name": "public", "full_identity": false}, {"id": "filter_1", "kind": "Filter", "input": "source_1", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "filter_2", "kind": "Filter", "input": "source_2", "schema": [{"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "predicates": [{"op": "is_not_null", "oid": 16, "args": [{"oid": 23, "kind": "Column", "index": 0, "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "join_1", "op": "inner", "kind": "Join", "left": "filter_1", "right": "filter_2", "schema": [{"oid": 23, "kind": "Field", "name": "customer_id", "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Field", "name": "amount", "typmod": -1, "collation": 0}, {"oid": 23, "kind": "Field", "name": "id", "typmod": -1, "collation": 0}, {"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "residual": [], "left_keys": [0], "null_safe": [], "right_keys": [0]}, {"id": "map_1", "kind": "Map", "input": "join_1", "schema": [{"oid": 25, "kind": "Field", "name": "key_0", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "key_1", "typmod": -1, "collation": 0}], "expressions": [{"oid": 25, "kind": "Column", "index": 3, "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Column", "index": 1, "typmod": -1, "collation": 0}]}, {"id": "reduce_1", "keys": [0], "kind": "Reduce", "input": "map_1", "always": [], "schema": [{"oid": 25, "kind": "Field", "name": "c.country", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}], "aggregates": [{"row": [], "sql": "", "kind": "Aggregate", "more": [], "direct": 0, "filter": null, "result": {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}, "trusted": true, "argument": 1, "distinct": false, "function": "sum", "shows_order": false}]}, {"id": "fused_1", "kind": "Fused", "input": "reduce_1", "steps": [{"id": "fused_1.1", "kind": "Filter", "input": "reduce_1", "schema": [{"oid": 25, "kind": "Field", "name": "c.country", "typmod": -1, "collation": 100}, {"oid": 1700, "kind": "Field", "name": "sum(o.amount)", "typmod": -1, "collation": 0}], "predicates": [{"op": ">", "oid": 16, "args": [{"oid": 1700, "kind": "Column", "index": 1, "typmod": -1, "collation": 0}, {"oid": 1700, "kind": "Literal", "text": "400", "typmod": -1, "collation": 0}], "kind": "Native", "typmod": -1, "collation": 0}]}, {"id": "fused_1.2", "kind": "Map", "input": "fused_1.1", "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}], "expressions": [{"oid": 25, "kind": "Column", "index": 0, "typmod": -1, "collation": 100}]}], "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}]}, {"id": "sink_1", "key": [], "kind": "Sink", "input": "fused_1", "schema": [{"oid": 25, "kind": "Field", "name": "country", "typmod": -1, "collation": 100}]}], "version": 2}', '{"key": "could have key (country), proved; that there is no NULL in country would be checked", "graphs": [{"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Project", "detail": "[revenue.country]", "inputs": ["2"], "columns": [{"name": "country", "type": "text"}]}, {"id": "2", "kind": "Filter", "detail": "revenue.amount > 400", "inputs": ["3"], "columns": [{"name": "country", "type": "text"}, {"name": "orders", "type": "bigint"}, {"name": "amount", "type": "numeric"}]}, {"id": "3", "kind": "Project", "detail": "[c.country, count(*) AS orders, sum(o.amount) AS amount]", "inputs": ["4"], "columns": [{"name": "country", "type": "text"}, {"name": "orders", "type": "bigint"}, {"name": "amount", "type": "numeric"}]}, {"id": "4", "kind": "Aggregate", "detail": "[count(*), sum(o.amount)] by [c.country]", "inputs": ["5"], "columns": [{"name": "c.country", "type": "text"}, {"name": "count(*)", "type": "bigint"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "5", "kind": "InnerJoin", "detail": "c.id = o.customer_id", "inputs": ["6", "7"], "columns": [{"name": "id", "type": "integer"}, {"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}, {"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "6", "kind": "Scan", "detail": "public.orders AS o [id, customer_id, amount]", "columns": [{"name": "id", "type": "integer"}, {"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}, {"id": "7", "kind": "Scan", "detail": "public.customers AS c [id, country]", "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}], "notes": [], "stage": "logical", "version": 1}, {"root": "1", "named": false, "nodes": [{"id": "1", "kind": "Project", "detail": "[c.country]", "inputs": ["2"], "columns": [{"name": "country", "type": "text"}]}, {"id": "2", "kind": "Filter", "detail": "revenue.amount > 400", "inputs": ["3"], "columns": [{"name": "c.country", "type": "text"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "3", "kind": "Aggregate", "detail": "[sum(o.amount)] by [c.country]", "inputs": ["4"], "columns": [{"name": "c.country", "type": "text"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "4", "kind": "InnerJoin", "detail": "c.id = o.customer_id", "inputs": ["5", "6"], "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}, {"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "5", "kind": "Scan", "detail": "public.orders AS o [customer_id, amount] filter o.customer_id IS NOT NULL", "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}, {"id": "6", "kind": "Scan", "detail": "public.customers AS c [id, country] filter c.id IS NOT NULL", "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}], "notes": [], "stage": "optimised", "version": 1}, {"root": "sink_1", "named": true, "nodes": [{"id": "sink_1", "cost": "O(changed result rows)", "kind": "Sink", "detail": "[country]", "inputs": ["fused_1"], "columns": [{"name": "country", "type": "text"}]}, {"id": "fused_1", "cost": "O(changes)", "kind": "Fused", "detail": "Filter revenue.amount > 400, Map [c.country]", "inputs": ["reduce_1"], "columns": [{"name": "country", "type": "text"}]}, {"id": "reduce_1", "cost": "O(changes + touched groups)", "kind": "Reduce", "state": "groups", "detail": "[sum(o.amount)] by [c.country]", "inputs": ["map_1"], "columns": [{"name": "c.country", "type": "text"}, {"name": "sum(o.amount)", "type": "numeric"}]}, {"id": "map_1", "cost": "O(changes)", "kind": "Map", "detail": "[c.country, o.amount]", "inputs": ["join_1"], "columns": [{"name": "key_0", "type": "text"}, {"name": "key_1", "type": "numeric"}]}, {"id": "join_1", "cost": "O(changes × matches)", "kind": "Join", "state": "rows of both sides", "detail": "on c.id = o.customer_id", "inputs": ["filter_1", "filter_2"], "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}, {"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "filter_2", "cost": "O(changes)", "kind": "Filter", "detail": "c.id IS NOT NULL", "inputs": ["source_2"], "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "filter_1", "cost": "O(changes)", "kind": "Filter", "detail": "o.customer_id IS NOT NULL", "inputs": ["source_1"], "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}, {"id": "source_2", "cost": "O(changes), one read per changed row", "kind": "Source", "state": "all rows", "detail": "public.customers [id, country] key id", "columns": [{"name": "id", "type": "integer"}, {"name": "country", "type": "text"}]}, {"id": "source_1", "cost": "O(changes), one read per changed row", "kind": "Source", "state": "all rows", "detail": "public.orders [customer_id, amount] key id", "columns": [{"name": "customer_id", "type": "integer"}, {"name": "amount", "type": "numeric"}]}], "notes": [], "stage": "physical", "version": 1}, {"root": "query", "named": false, "nodes": [{"id": "query", "kind": "Query", "inputs": ["column_1"]}, {"id": "column_1", "kind": "Column", "more": {"16713.2": "same"}, "detail": "country", "inputs": ["16713.2"]}, {"id": "16713.2", "kind": "TableColumn", "detail": "public.customers.country"}], "notes": [], "stage": "lineage", "version": 1}], "lineage": "country <- public.customers.country", "logical": "Project [revenue.country]\n  Filter revenue.amount > 400\n    Project [c.country, count(*) AS orders, sum(o.amount) AS amount]\n      Aggregate [count(*), sum(o.amount)] by [c.country]\n        InnerJoin c.id = o.customer_id\n          Scan public.orders AS o [id, customer_id, amount]\n          Scan public.customers AS c [id, country]", "origins": [{"from": [{"how": "same", "oid": 16713, "name": "country", "table": "customers", "attnum": 2, "schema": "public"}], "column": "country"}], "sources": "Table public.customers by key\nTable public.orders by key\nView of Headrace \"public\".\"revenue\"", "physical": "sink_1 Sink [country]  | O(changed result rows)\n  fused_1 Fused Filter revenue.amount > 400, Map [c.country]  | O(changes)\n    reduce_1 Reduce [sum(o.amount)] by [c.country]  | keeps groups; O(changes + touched groups)\n      map_1 Map [c.country, o.amount]  | O(changes)\n        join_1 Join on c.id = o.customer_id  | keeps rows of both sides; O(changes × matches)\n          filter_1 Filter o.customer_id IS NOT NULL  | O(changes)\n            source_1 Source public.orders [customer_id, amount]…  | keeps all rows; O(changes), one read per changed row\n          filter_2 Filter c.id IS NOT NULL  | O(changes)\n            source_2 Source public.customers [id, country] key…  | keeps all rows; O(changes), one read per changed row", "optimised": "Project [c.country]\n  Filter revenue.amount > 400\n    Aggregate [sum(o.amount)] by [c.country]\n      InnerJoin c.id = o.customer_id\n        Scan public.orders AS o [customer_id, amount] filter o.customer_id IS NOT NULL\n        Scan public.customers AS c [id, country] filter c.id IS NOT NULL"}', '{}', '{"lc_time": "C.UTF-8", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "xmlbinary": "base64", "xmloption": "content", "lc_numeric": "C.UTF-8", "lc_monetary": "C.UTF-8", "bytea_output": "hex", "IntervalStyle": "postgres", "extra_float_digits": "1", "quote_all_identifiers": "off", "timezone_abbreviations": "Default", "default_text_search_config": "pg_catalog.english"}', 'postgres', 16789, '0/1978418', 'running', NULL, NULL, true, '2026-11-25 13:05:40.212211+00', '{"seen": "762:762:", "lacks": [], "owner": 10, "views": {}, "rights": [["owner", 10, 0, [], 0], ["reader", 10, 0, [], 0], ["reader", 10, 0, [], 16755], ["execute", 10, 65, [], 16755], ["execute", 10, 1720, [], 0], ["execute", 10, 1740, [], 0], ["execute", 10, 2114, [], 16755], ["execute", 10, 2803, [], 16755], ["open", 10, 16713, [], 16755], ["open", 10, 16720, [], 16755], ["select", 10, 16713, [1, 2], 16755], ["select", 10, 16720, [2, 3], 16755], ["select", 10, 16755, [1, 3], 0], ["usage", 10, 2200, [], 0], ["usage", 10, 2200, [], 16755]], "tables": {"16713": {"key": [1], "kind": "r", "name": "customers", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "742", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "country", "type": 25, "typmod": -1, "written": "742", "not_null": false, "collation": 100, "generated": "", "expression": null}}, "storage": 16713, "identity": "d", "partition": false, "published": {"oid": 16753, "whole": true}, "attributes": [[1, "id", true, "742"], [2, "country", true, "742"]], "persistence": "p"}, "16720": {"key": [1], "kind": "r", "name": "orders", "parent": false, "schema": "public", "columns": {"1": {"name": "id", "type": 23, "typmod": -1, "written": "742", "not_null": true, "collation": 0, "generated": "", "expression": null}, "2": {"name": "customer_id", "type": 23, "typmod": -1, "written": "742", "not_null": false, "collation": 0, "generated": "", "expression": null}, "3": {"name": "amount", "type": 1700, "typmod": -1, "written": "742", "not_null": false, "collation": 0, "generated": "", "expression": null}}, "storage": 16720, "identity": "d", "partition": false, "published": {"oid": 16754, "whole": true}, "attributes": [[1, "id", true, "742"], [2, "customer_id", true, "742"], [3, "amount", true, "742"]], "persistence": "p"}}, "results": {"16755": {"name": "public.revenue", "revision": 0}}, "relations": {"16713": {"name": "public.customers", "members": [16713], "inherits": true}, "16720": {"name": "public.orders", "members": [16720], "inherits": true}}, "definitions": {"deep": false, "words": [], "called": null, "objects": {}}, "publication": {"oid": 16712, "whole": true, "written": "738"}}', 'SELECT country
FROM public.revenue
WHERE (amount > (400)::numeric);', '[{"oid": 16757, "kind": "type", "name": "revenue", "schema": "public"}, {"oid": 16755, "name": "revenue", "count": 1, "schema": "public", "columns": [[1, "country"], [2, "orders"], [3, "amount"]]}]', 0, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-25 13:05:40.330164+00', NULL, NULL, '{}', NULL);
SELECT pg_catalog.setval('headrace.commands_id_seq', 1, false);
SELECT pg_catalog.setval('headrace.feeds_id_seq', 1, true);
SELECT pg_catalog.setval('headrace.histories_id_seq', 1, true);
SELECT pg_catalog.setval('headrace.views_id_seq', 2, true);
ALTER TABLE ONLY headrace.carrier
ADD CONSTRAINT carrier_pkey PRIMARY KEY (single);
ALTER TABLE ONLY headrace.commands
ADD CONSTRAINT commands_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.facts
ADD CONSTRAINT facts_pkey PRIMARY KEY (fact);
ALTER TABLE ONLY headrace.feeds
ADD CONSTRAINT feeds_owner_name_key UNIQUE (owner, name);
ALTER TABLE ONLY headrace.feeds
ADD CONSTRAINT feeds_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.held
ADD CONSTRAINT held_pkey PRIMARY KEY (view_id, kind);
ALTER TABLE ONLY headrace.histories
ADD CONSTRAINT histories_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.histories
ADD CONSTRAINT histories_result_oid_key UNIQUE (result_oid);
ALTER TABLE ONLY headrace.histories
ADD CONSTRAINT histories_view_id_key UNIQUE (view_id);
ALTER TABLE ONLY headrace.history
ADD CONSTRAINT history_pkey PRIMARY KEY (history_id, txid, part);
ALTER TABLE ONLY headrace.made_schemas
ADD CONSTRAINT made_schemas_pkey PRIMARY KEY (schema_oid);
ALTER TABLE ONLY headrace.meta
ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY headrace.nodes
ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.origins
ADD CONSTRAINT origins_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.origins
ADD CONSTRAINT origins_slot_key UNIQUE (slot);
ALTER TABLE ONLY headrace.points
ADD CONSTRAINT points_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headrace.progress
ADD CONSTRAINT progress_pkey PRIMARY KEY (view_id);
ALTER TABLE ONLY headrace.samples
ADD CONSTRAINT samples_pkey PRIMARY KEY (view_id, step_s, at);
ALTER TABLE ONLY headrace.stand_ins
ADD CONSTRAINT stand_ins_pkey PRIMARY KEY (table_oid);
ALTER TABLE ONLY headrace.stand_ins
ADD CONSTRAINT stand_ins_source_origin_oid_key UNIQUE (source, origin_oid);
ALTER TABLE ONLY headrace.view_tables
ADD CONSTRAINT view_tables_pkey PRIMARY KEY (view_id, table_oid);
ALTER TABLE ONLY headrace.view_uses
ADD CONSTRAINT view_uses_pkey PRIMARY KEY (view_id, result_oid);
ALTER TABLE ONLY headrace.views
ADD CONSTRAINT views_pkey PRIMARY KEY (id);
ALTER TABLE ONLY headrace.views
ADD CONSTRAINT views_schema_name_view_name_key UNIQUE (schema_name, view_name);
CREATE INDEX commands_unfinished ON headrace.commands USING btree (id) WHERE (status = ANY (ARRAY['pending'::text, 'running'::text]));
CREATE INDEX points_view_id ON headrace.points USING btree (view_id);
CREATE INDEX view_tables_table_oid ON headrace.view_tables USING btree (table_oid);
CREATE INDEX view_uses_result_oid ON headrace.view_uses USING btree (result_oid);
CREATE TRIGGER stamp BEFORE INSERT ON headrace.commands FOR EACH ROW EXECUTE FUNCTION headrace.stamp_command();
ALTER TABLE headrace.commands ENABLE ALWAYS TRIGGER stamp;
ALTER TABLE ONLY headrace.held
ADD CONSTRAINT held_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.histories
ADD CONSTRAINT histories_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.history
ADD CONSTRAINT history_history_id_fkey FOREIGN KEY (history_id) REFERENCES headrace.histories(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.points
ADD CONSTRAINT points_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.progress
ADD CONSTRAINT progress_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.samples
ADD CONSTRAINT samples_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY headrace.stand_ins
ADD CONSTRAINT stand_ins_source_fkey FOREIGN KEY (source) REFERENCES headrace.origins(name) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.view_tables
ADD CONSTRAINT view_tables_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE ONLY headrace.view_uses
ADD CONSTRAINT view_uses_view_id_fkey FOREIGN KEY (view_id) REFERENCES headrace.views(id) ON DELETE CASCADE;
ALTER TABLE headrace.carrier ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.commands ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.facts ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.feeds ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.held ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.histories ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.history ENABLE ROW LEVEL SECURITY;
CREATE POLICY made ON headrace.feeds FOR INSERT WITH CHECK (((owner IN ( SELECT r.oid
FROM pg_roles r
WHERE pg_has_role(r.oid, 'USAGE'::text))) AND (history_id IN ( SELECT h.id
FROM headrace.histories h))));
ALTER TABLE headrace.made_schemas ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.meta ENABLE ROW LEVEL SECURITY;
CREATE POLICY moved ON headrace.feeds FOR UPDATE USING ((owner IN ( SELECT r.oid
FROM pg_roles r
WHERE pg_has_role(r.oid, 'USAGE'::text))));
ALTER TABLE headrace.nodes ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.origins ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON headrace.commands FOR SELECT USING ((caller = ( SELECT ((quote_ident((CURRENT_USER)::text))::regrole)::oid AS quote_ident)));
CREATE POLICY own ON headrace.facts FOR SELECT USING (pg_has_role(( SELECT c.relowner
FROM pg_class c
WHERE (c.oid = ('headrace.facts'::regclass)::oid)), 'USAGE'::text));
CREATE POLICY own ON headrace.feeds FOR SELECT USING ((owner IN ( SELECT r.oid
FROM pg_roles r
WHERE pg_has_role(r.oid, 'USAGE'::text))));
CREATE POLICY own ON headrace.held FOR SELECT USING ((view_id IN ( SELECT v.id
FROM headrace.views v)));
CREATE POLICY own ON headrace.points FOR SELECT USING ((view_id IN ( SELECT v.id
FROM headrace.views v)));
CREATE POLICY own ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT v.id
FROM headrace.views v)));
CREATE POLICY own ON headrace.samples FOR SELECT USING ((view_id IN ( SELECT v.id
FROM headrace.views v)));
CREATE POLICY own ON headrace.view_tables FOR SELECT USING ((view_id IN ( SELECT v.id
FROM headrace.views v)));
CREATE POLICY own ON headrace.view_uses FOR SELECT USING ((view_id IN ( SELECT v.id
FROM headrace.views v)));
CREATE POLICY own ON headrace.views FOR SELECT USING (((owner)::oid IN ( SELECT r.oid
FROM pg_roles r
WHERE pg_has_role(r.oid, 'USAGE'::text))));
ALTER TABLE headrace.points ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.progress ENABLE ROW LEVEL SECURITY;
CREATE POLICY public ON headrace.meta FOR SELECT USING (true);
CREATE POLICY readers ON headrace.histories FOR SELECT USING ((has_table_privilege(result_oid, 'SELECT'::text) AND (NOT row_security_active(result_oid))));
CREATE POLICY readers ON headrace.history FOR SELECT USING ((history_id IN ( SELECT h.id
FROM headrace.histories h)));
CREATE POLICY readers ON headrace.progress FOR SELECT USING ((view_id IN ( SELECT h.view_id
FROM headrace.histories h)));
ALTER TABLE headrace.samples ENABLE ROW LEVEL SECURITY;
CREATE POLICY send ON headrace.commands FOR INSERT WITH CHECK ((caller = ((quote_ident((CURRENT_USER)::text))::regrole)::oid));
ALTER TABLE headrace.stand_ins ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_tables ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.view_uses ENABLE ROW LEVEL SECURITY;
ALTER TABLE headrace.views ENABLE ROW LEVEL SECURITY;
GRANT USAGE ON SCHEMA headrace TO PUBLIC;
GRANT SELECT ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(name),UPDATE(name) ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(history_id) ON TABLE headrace.feeds TO PUBLIC;
GRANT INSERT(txid),UPDATE(txid) ON TABLE headrace.feeds TO PUBLIC;
GRANT SELECT ON TABLE headrace.histories TO PUBLIC;
GRANT SELECT ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(procedure) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(arguments) ON TABLE headrace.commands TO PUBLIC;
GRANT INSERT(settings) ON TABLE headrace.commands TO PUBLIC;
GRANT SELECT ON TABLE headrace.facts TO PUBLIC;
GRANT SELECT ON TABLE headrace.held TO PUBLIC;
GRANT SELECT ON TABLE headrace.history TO PUBLIC;
GRANT SELECT ON TABLE headrace.meta TO PUBLIC;
GRANT SELECT ON TABLE headrace.points TO PUBLIC;
GRANT SELECT ON TABLE headrace.progress TO PUBLIC;
GRANT SELECT ON TABLE headrace.samples TO PUBLIC;
GRANT SELECT ON TABLE headrace.view_tables TO PUBLIC;
GRANT SELECT ON TABLE headrace.view_uses TO PUBLIC;
GRANT SELECT(id) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(schema_name) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(view_name) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(query) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(columns) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(explain) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(options) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(settings) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(owner) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(result_oid) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(start_lsn) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(status) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(message) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(sqlstate) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(block) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(created_at) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(canonical) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(revision) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(detail) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(hint) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(culprit) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(tried) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(note) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(since) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(last_error) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(last_error_at) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(placed_parts) ON TABLE headrace.views TO PUBLIC;
GRANT SELECT(paused_by) ON TABLE headrace.views TO PUBLIC;
