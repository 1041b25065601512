-- Token with which a logical message must begin to count as ours, because every role may emit messages.
CREATE TABLE IF NOT EXISTS headrace.carrier (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    token  text NOT NULL
);
