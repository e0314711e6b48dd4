\set i :i + 1
INSERT INTO inbox SELECT doc -> '_id' ->> '$oid', doc ->> 'recipient', doc -> 'sent' ->> '$date', doc ->> 'from', doc FROM bench.batches, unnest(docs) AS doc WHERE n = :i;
