-- What a message has to begin with to be taken for one of ours: everybody may emit some.
CREATE TABLE IF NOT EXISTS headrace.carrier (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    token  text NOT NULL
);
