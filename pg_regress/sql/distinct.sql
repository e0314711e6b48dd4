-- The distinct values of a field.
SELECT docshard.insert_many('dist.c', ARRAY['{"_id": 1, "a": 2, "s": "x", "l": [1, 2, [3]], "e": {"x": 1, "y": [5, 6]}}',
  '{"_id": 2, "a": 2.0, "s": "y", "l": [2, 3], "e": [{"x": 2}, {"x": 1, "y": 6}]}', '{"_id": 3, "a": {"$numberDecimal": "2.00"}, "s": "x", "l": 9}',
  '{"_id": 4, "a": null, "s": "z", "l": []}', '{"_id": 5, "a": "2", "e": {"y": {"$date": "2020-01-01T00:00:00Z"}}}']::jsonb[]) -> 'insertedCount' AS inserted;
-- Numbers are equal by value; a missing field has no value, null is one.
SELECT docshard.distinct('dist.c', 'a');
-- Arrays contribute their elements, one level deep, also along the path.
SELECT docshard.distinct('dist.c', 'l');
SELECT docshard.distinct('dist.c', 'l.0');
SELECT docshard.distinct('dist.c', 'e.x');
SELECT docshard.distinct('dist.c', 'e.y');
SELECT docshard.distinct('dist.c', 'e');
SELECT docshard.distinct('dist.c', 's', '{"_id": {"$lt": 4}}');
SELECT docshard.distinct('dist.c', 's', '{"_id": 99}');
SELECT docshard.distinct('dist.nothing', 's');
SELECT docshard.distinct('dist.c', '');
SELECT docshard.distinct('dist.c', '$a');
SELECT docshard.distinct('dist.c', 'a', '{"$foo": 1}');
SELECT docshard.distinct('dist.c', 'a', '{}', '{"limit": 1}');
-- Over several shards each value is returned once, in order; a filter on the shard key asks one shard.
SELECT docshard.shard_collection('dist.s', '{"_id": "hashed"}');
SELECT docshard.insert_many('dist.s', array_agg(jsonb_build_object('_id', n, 'm', n % 5, 'l', jsonb_build_array(n % 3, 'x' || n % 2)))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 200) n;
SELECT docshard.distinct('dist.s', 'm');
SELECT docshard.distinct('dist.s', 'l', '{"m": {"$gt": 2}}');
SELECT docshard.distinct('dist.s', 'l', '{"_id": 7}');
SELECT count(*), count(DISTINCT v) FROM docshard.distinct('dist.s', '_id') v;
SELECT docshard.drop_database('dist');
