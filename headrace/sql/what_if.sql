-- Tries one INSERT, UPDATE or DELETE, and returns what it would change in views (views/what_if.py), as the JSON that
-- what_if_rows reads.  It runs in a transaction of the caller that is rolled back; its locks are held until the engine has the
-- states as of then.  most: how many rows of each view.
--
-- REPEATABLE READ: a concurrent change is an error, after which it is tried again.  So the rows that the query returns
-- are those that it replaces.  settings: those under which values have the same text as in the stream.  They are set after the
-- statement has run, because all its rows come at once, and end with the subtransaction.
CREATE OR REPLACE PROCEDURE headrace.what_if(statement text, most bigint DEFAULT 100, INOUT effects jsonb DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    bytes_max CONSTANT pg_catalog.int8 := 67108864;
    -- The arguments of a call may have 1 MB as JSON.
    piece_bytes CONSTANT pg_catalog.int8 := 400000;
    refused pg_catalog.text;
    plan    pg_catalog.jsonb;
    pieces  pg_catalog.text[];
    piece   pg_catalog.text;
    lines   pg_catalog.text[];
    line    pg_catalog.text;
    bytes   pg_catalog.int8;
    total   pg_catalog.int8;
    own     pg_catalog.jsonb;
    before  pg_catalog.jsonb;
    facts   pg_catalog.jsonb;
    held    pg_catalog.int8;
    nothing pg_catalog.jsonb;
    failed  pg_catalog.jsonb;
    r       record;
    tries   pg_catalog.int4 := 0;
BEGIN
    -- It always fails here, for another reason in a context that is not atomic.
    BEGIN
        COMMIT;
    EXCEPTION WHEN invalid_transaction_termination THEN
        refused := SQLERRM;
    END;
    IF refused OPERATOR(pg_catalog.=) headrace.refused_commit() THEN
        RAISE EXCEPTION USING ERRCODE = '25001',
            MESSAGE = 'CALL headrace.what_if cannot run inside a transaction block',
            DETAIL = 'It runs the statement in a transaction of its own, and rolls that back.',
            HINT = 'Run it as a statement of its own, with autocommit on and outside of BEGIN … COMMIT (psycopg: conn.autocommit = True; JDBC: setAutoCommit(true); psql: \set AUTOCOMMIT on, without -1).';
    END IF;
    COMMIT;
    IF statement IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'argument "statement" must not be null';
    END IF;
    <<steps>>
    LOOP
        CALL headrace.carry_out('what_if_plan', pg_catalog.jsonb_build_object('statement', statement), NULL, plan, failed);
        EXIT steps WHEN failed IS NOT NULL;
        plan := plan OPERATOR(pg_catalog.->) 0 OPERATOR(pg_catalog.->) 'plan';
        WHILE held IS NULL LOOP
            tries := tries OPERATOR(pg_catalog.+) 1;
            pieces := '{}';
            lines := '{}';
            bytes := 0;
            total := 0;
            own := NULL;
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE;
            BEGIN
                before := headrace.what_if_facts(plan OPERATOR(pg_catalog.->) 'tables') OPERATOR(pg_catalog.->) 'counts';
                FOR r IN EXECUTE plan OPERATOR(pg_catalog.->>) 'query' LOOP
                    IF own IS NULL THEN
                        SELECT pg_catalog.jsonb_object_agg(s.key, pg_catalog.current_setting(s.key)) INTO own
                          FROM pg_catalog.jsonb_each_text(plan OPERATOR(pg_catalog.->) 'settings') s;
                        PERFORM pg_catalog.set_config(s.key, s.value, true)
                           FROM pg_catalog.jsonb_each_text(plan OPERATOR(pg_catalog.->) 'settings') s;
                    END IF;
                    line := r::pg_catalog.text;
                    line := pg_catalog.substr(line, 2, pg_catalog.length(line) OPERATOR(pg_catalog.-) 2);
                    lines := pg_catalog.array_append(lines, line);
                    bytes := bytes OPERATOR(pg_catalog.+) pg_catalog.octet_length(line) OPERATOR(pg_catalog.+) 1;
                    IF bytes OPERATOR(pg_catalog.>) piece_bytes THEN
                        pieces := pg_catalog.array_append(pieces, pg_catalog.array_to_string(lines, E'\n'));
                        total := total OPERATOR(pg_catalog.+) bytes;
                        bytes := 0;
                        lines := '{}';
                        IF total OPERATOR(pg_catalog.>) bytes_max THEN
                            RAISE EXCEPTION USING ERRCODE = '54000',
                                MESSAGE = 'the statement changes too many rows',
                                DETAIL = 'All rows together may have 64 MB of text.',
                                HINT = 'Try it for a part of the rows.';
                        END IF;
                    END IF;
                END LOOP;
                IF bytes OPERATOR(pg_catalog.>) 0 THEN
                    pieces := pg_catalog.array_append(pieces, pg_catalog.array_to_string(lines, E'\n'));
                END IF;
                -- Deferred triggers run as at the COMMIT.
                PERFORM pg_catalog.set_config(s.key, s.value, true) FROM pg_catalog.jsonb_each_text(own) s;
                SET CONSTRAINTS ALL IMMEDIATE;
                facts := headrace.what_if_facts(plan OPERATOR(pg_catalog.->) 'tables')
                    OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('table', plan OPERATOR(pg_catalog.->) 'table', 'before', before);
                held := headrace.what_if_hold((plan OPERATOR(pg_catalog.->>) 'table')::pg_catalog.int8);
                RAISE EXCEPTION USING ERRCODE = 'HR001';
            EXCEPTION
                WHEN SQLSTATE 'HR001' THEN
                    -- The statement may have raised it as well.
                    IF held IS NULL THEN
                        RAISE;
                    END IF;
                WHEN serialization_failure THEN
                    IF tries OPERATOR(pg_catalog.>=) 5 THEN
                        RAISE;
                    END IF;
            END;
        END LOOP;
        COMMIT;
        CALL headrace.carry_out('what_if_hold', NULL, held, nothing, failed);
        EXIT steps WHEN failed IS NOT NULL;
        FOREACH piece IN ARRAY pieces LOOP
            CALL headrace.carry_out('what_if_rows', pg_catalog.jsonb_build_object('call', held, 'rows', piece), NULL, nothing, failed);
            EXIT steps WHEN failed IS NOT NULL;
        END LOOP;
        CALL headrace.carry_out('what_if', pg_catalog.jsonb_build_object(
            'call', held, 'facts', facts::pg_catalog.text, 'most', most), NULL, effects, failed);
        EXIT steps;
    END LOOP;
    -- RAISE failed
    PERFORM pg_catalog.set_config('headrace.what_if', effects::pg_catalog.text, false);
END
$$;
