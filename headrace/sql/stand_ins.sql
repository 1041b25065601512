-- Tables that stand here for those of sources; see origins.
CREATE TABLE IF NOT EXISTS headrace.stand_ins (
    table_oid  oid PRIMARY KEY,
    source     text NOT NULL REFERENCES headrace.origins ON DELETE CASCADE,
    origin_oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    UNIQUE (source, origin_oid)
);
