-- A worker on another machine says where it listens and what certificate it shows; answers that of the engine.
-- Who has the worker's token may: it comes from create_worker_token, and ends with the worker or a newer one.
-- Any role may try: the secret in it has 256 bits.
CREATE OR REPLACE FUNCTION headrace.join_worker(token text, address text, certificate text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- No longer than they can be: anybody may write here whose token is right.
    IF length(address) > 300 OR length(certificate) > 10000 THEN
        RAISE EXCEPTION USING ERRCODE = '22001', MESSAGE = 'address or certificate of the worker is too long';
    END IF;
    UPDATE headrace.nodes n
       SET address = join_worker.address, certificate = join_worker.certificate, seen_at = clock_timestamp()
     WHERE n.name = split_part(join_worker.token, '.', 1)
       AND n.token = sha256(convert_to(split_part(join_worker.token, '.', 2), 'UTF8'));
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '28000', MESSAGE = 'the worker''s token is not valid',
            DETAIL = 'The worker was removed, a newer token was made for it, or this database is not that of its engine.',
            HINT = 'CALL headrace.create_worker_token(name) makes one.';
    END IF;
    RETURN (SELECT m.value FROM headrace.meta m WHERE m.key = 'certificate');
END
$$;
