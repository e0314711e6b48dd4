-- Documents in a table as PostgreSQL wants them: what is searched by has a column of its own.
CREATE TABLE inbox (id text NOT NULL DEFAULT gen_random_uuid(), recipient text NOT NULL, sent text NOT NULL,
  author text, doc jsonb NOT NULL);
CREATE UNIQUE INDEX ON inbox (recipient, sent, id);
CREATE INDEX ON inbox (id);
CREATE INDEX ON inbox (author);
CREATE TABLE people (name text PRIMARY KEY, doc jsonb NOT NULL);
