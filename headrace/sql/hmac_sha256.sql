-- HMAC-SHA256 of a message (RFC 2104); the key has at most 64 bytes.
CREATE OR REPLACE FUNCTION headrace.hmac_sha256(key bytea, message bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    FOR i IN 0 .. length(key) - 1 LOOP
        inner_pad := set_byte(inner_pad, i, get_byte(key, i) # 54);
        outer_pad := set_byte(outer_pad, i, get_byte(key, i) # 92);
    END LOOP;
    RETURN sha256(outer_pad || sha256(inner_pad || message));
END
$$;
