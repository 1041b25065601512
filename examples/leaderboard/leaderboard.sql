-- What the game writes.
CREATE TABLE IF NOT EXISTS players (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE IF NOT EXISTS scores (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    player_id int NOT NULL REFERENCES players,
    points int NOT NULL
);
