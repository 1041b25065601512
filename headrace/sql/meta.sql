-- Facts about the installation: version, system id, timeline, the commander's backend.
CREATE TABLE IF NOT EXISTS headrace.meta (
    key   text PRIMARY KEY,
    value text
);
