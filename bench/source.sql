-- The documents to load and the keys to search for, both in the database that clients connect to. Needs
-- docs/demo/generate.sql, and the psql variables docs (how many documents) and batch (how many of them are loaded at once).
CREATE SCHEMA bench;

-- Drivers generate the _id, so it is part of the document.
CREATE UNLOGGED TABLE bench.batches (n int PRIMARY KEY, docs jsonb[] NOT NULL);
ALTER TABLE bench.batches ALTER docs SET STORAGE EXTERNAL;
INSERT INTO bench.batches
SELECT b, array_agg(message || jsonb_build_object('_id', jsonb_build_object('$oid', substr(md5(b || ' ' || i), 1, 24))))
FROM generate_series(0, :docs / :batch - 1) AS b,
  demo.messages(b * (:batch / 4), (b + 1) * (:batch / 4) - 1) WITH ORDINALITY AS m (message, i)
GROUP BY b;

-- The arguments of calls in the contenders' formats, for ten calls in each row, so that fetching rows hardly affects the
-- measurement. The documents are random; runs of a script need not use the same ones.
CREATE UNLOGGED TABLE bench.picks (n int PRIMARY KEY, recipient text[], sent text[], author text[], doc text[],
  by_key text[], by_recipient text[], by_author text[]);
INSERT INTO bench.picks
SELECT n, array_agg(doc ->> 'recipient'), array_agg(doc -> 'sent' ->> '$date'), array_agg(doc ->> 'from'),
  array_agg((doc - '_id')::text),
  array_agg(jsonb_build_object('recipient', doc -> 'recipient', 'sent', doc -> 'sent')::text),
  array_agg(jsonb_build_object('recipient', doc -> 'recipient')::text),
  array_agg(jsonb_build_object('from', doc -> 'from')::text)
FROM (
  SELECT (row_number() OVER (ORDER BY hashint8extended(number, 0)) - 1) / 10 AS n, doc
  FROM (SELECT row_number() OVER () AS number, doc FROM bench.batches, unnest(docs) AS doc
    WHERE batches.n % greatest(1, (SELECT count(*) FROM bench.batches) / 20) = 0) AS numbered
  LIMIT 20000
) AS picked
GROUP BY n
HAVING count(*) = 10;
VACUUM ANALYZE bench.batches;
VACUUM ANALYZE bench.picks;
