-- Stand-ins: empty tables here that have the columns of sources' tables; see origins.
CREATE TABLE IF NOT EXISTS headrace.stand_ins (
    table_oid  oid PRIMARY KEY,
    source     text NOT NULL REFERENCES headrace.origins ON DELETE CASCADE,
    origin_oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    UNIQUE (source, origin_oid)
);
