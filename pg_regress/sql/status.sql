-- status(): the cluster as text.
SELECT docshard.enable_sharding('st', 'shard0');
SELECT docshard.shard_collection('st.c', '{"name": 1}');
SELECT docshard.split_at('st.c', '{"name": "m"}');
SELECT docshard.insert_many('st.c', ARRAY['{"_id": 1, "name": "ann"}', '{"_id": 2, "name": "zoe"}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('st.plain', '{"_id": 1}') -> 'insertedId' AS id;
\pset format unaligned
\pset tuples_only on
SELECT line FROM regexp_split_to_table(regexp_replace(regexp_replace(docshard.status(), 'cluster [0-9a-f]{16}', 'cluster ID'), '/\S*:\d+/', 'HOST/', 'g'), E'\n') AS line
 WHERE line !~ 'last error';
\pset format aligned
\pset tuples_only off
SELECT docshard.drop_database('st');
