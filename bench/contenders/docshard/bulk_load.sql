\set i :i + 1
SELECT docshard.insert_many('bench.inbox', docs) IS NULL FROM bench.batches WHERE n = :i;
