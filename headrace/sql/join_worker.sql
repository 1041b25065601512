-- Registers a worker on another machine: its address and certificate.  Returns the engine's certificate.
-- The worker proves that it has its token without sending it, because parameters of statements may be logged.
-- proof: the token's secret, XORed with HMAC-SHA256(SHA-256(secret), message) as in SCRAM (RFC 5802).  So neither the
-- catalog, which has SHA-256(secret), nor the log suffices to join.  made_at is the server's clock in microseconds
-- since 1970, read by the worker just before.  A used proof is not valid again, because seen_at is later then.
-- Any role may try, because the secret has 256 bits.
DROP FUNCTION IF EXISTS headrace.join_worker(text, text, text);
CREATE OR REPLACE FUNCTION headrace.join_worker(
    worker text, made_at bigint, proof bytea, address text, certificate text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    was      headrace.nodes;
    signed   text;
    stream   bytea;
    secret   bytea;
    now_at   bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    seen_at  bigint;
BEGIN
    -- Every role may call this: inputs are bounded before they are hashed.
    IF length(address) > 300 OR length(certificate) > 10000 OR length(worker) > 100 THEN
        RAISE EXCEPTION USING ERRCODE = '22001', MESSAGE = 'address or certificate of the worker is too long';
    END IF;
    SELECT n.* INTO was FROM headrace.nodes n
     WHERE n.name = join_worker.worker AND n.token IS NOT NULL FOR NO KEY UPDATE;
    seen_at := extract(epoch FROM was.seen_at) * 1000000;
    IF FOUND AND length(proof) BETWEEN 1 AND 64 THEN
        signed := concat_ws(E'\n', worker, made_at, address, certificate);
        stream := headrace.hmac_sha256(was.token, convert_to(E'1\n' || signed, 'UTF8'))
               || headrace.hmac_sha256(was.token, convert_to(E'2\n' || signed, 'UTF8'));
        secret := proof;
        FOR i IN 0 .. length(proof) - 1 LOOP
            secret := set_byte(secret, i, get_byte(proof, i) # get_byte(stream, i));
        END LOOP;
    END IF;
    IF secret IS NULL OR sha256(secret) <> was.token THEN
        RAISE EXCEPTION USING ERRCODE = '28000', MESSAGE = 'the worker''s token is not valid',
            DETAIL = 'The worker was removed, a newer token was made for it, or this database is not that of its engine.',
            HINT = 'CALL headrace.create_worker_token(name) makes one.';
    END IF;
    -- A server whose clock was set back would refuse every proof until the old time has come again.
    IF made_at NOT BETWEEN now_at - 60000000 AND now_at OR (made_at <= seen_at AND seen_at <= now_at) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the worker''s proof is too old, or was used before',
            HINT = 'The worker makes a new one by itself when it tries again.';
    END IF;
    -- Two processes with one token would take each other's place again and again.  One that has lost its disk is
    -- where it was; one that has moved is not seen any more (as long as nodes.SILENCE_S).
    IF was.certificate <> join_worker.certificate AND was.address <> join_worker.address
       AND was.seen_at > clock_timestamp() - interval '30 seconds' THEN
        RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('worker "%s" has joined from elsewhere', was.name),
            DETAIL = format('It listens on %s, and reported that less than 30 seconds ago.', was.address),
            HINT = 'Stop that one, and try again; or create another worker: CALL headrace.create_worker_token(name).';
    END IF;
    UPDATE headrace.nodes n
       SET address = join_worker.address, certificate = join_worker.certificate, seen_at = clock_timestamp()
     WHERE n.name = was.name;
    RETURN (SELECT m.value FROM headrace.meta m WHERE m.key = 'certificate');
END
$$;
