\set i :i + 1
INSERT INTO typed SELECT doc -> '_id' ->> '$oid', doc ->> 'recipient', doc -> 'sent' ->> '$date', doc ->> 'from', (doc ->> 'likes')::int, ARRAY(SELECT jsonb_array_elements_text(doc -> 'to')), doc ->> 'text', doc FROM bench.batches, unnest(docs) AS doc WHERE n = :i;
