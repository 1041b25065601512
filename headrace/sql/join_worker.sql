-- A worker on another machine says where it listens and what certificate it shows; answers that of the engine.
-- Who has the worker's token may: it comes from create_worker_token, and ends with the worker or a newer one.
-- Any role may try: the secret in it has 256 bits.
CREATE OR REPLACE FUNCTION headrace.join_worker(token text, address text, certificate text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was headrace.nodes;
BEGIN
    -- No longer than they can be: anybody may write here whose token is right.
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
    -- Two processes with one token would take each other's place again and again.  One that has lost its disk is
    -- where it was; one that has moved is not seen any more (as long as nodes.SILENCE_S).
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
