-- Events of the engine, from level info on, as docs/manual/events.md lists them: of a view, the newest 200; of none, the
-- newest 5 000; 50 000 in all, for 30 days.  Written by the commander each second, if there are any.  The rows of a
-- view are visible to its owner and the members of that role; all others to members of the engine's role.
-- view: as in list_views(); of an assertion, its name.  owner: the owner of the view when the row was written.
-- fields: the other fields of the event.  process, pid, at and seq identify the event.
CREATE TABLE IF NOT EXISTS headrace.events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    level   text NOT NULL,
    event   text NOT NULL,
    view    text,
    view_id bigint,
    process text NOT NULL,
    pid     bigint,
    fields  jsonb NOT NULL,
    owner   oid,
    seq     bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (process, pid, at, seq)
);
CREATE INDEX IF NOT EXISTS events_view_id ON headrace.events (view_id, id);
CREATE INDEX IF NOT EXISTS events_view ON headrace.events (view, id);
