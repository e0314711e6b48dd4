\set i :i + 1
SELECT loaded(array_agg(load(shard, docs))) FROM (SELECT shard_number(doc ->> 'recipient') AS shard, array_agg(doc::bytea) AS docs FROM bench.batches, unnest(docs) AS doc WHERE n = :i GROUP BY 1) AS parts;
