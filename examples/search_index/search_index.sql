-- What the application writes.
CREATE TABLE IF NOT EXISTS authors (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE IF NOT EXISTS articles (
    id int PRIMARY KEY,
    author_id int NOT NULL REFERENCES authors,
    title text NOT NULL,
    body text NOT NULL
);
CREATE TABLE IF NOT EXISTS tags (
    article_id int NOT NULL REFERENCES articles ON DELETE CASCADE,
    tag text NOT NULL,
    PRIMARY KEY (article_id, tag)
);
