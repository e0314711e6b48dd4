-- Settings of the balancer: by collection, by time of day, speed; and its report on a collection.
SELECT docshard.shard_collection('bs.c', '{"a": 1}');
SELECT docshard.insert_many('bs.c', array_agg(jsonb_build_object('_id', i, 'a', i))) ->> 'insertedCount' FROM generate_series(1, 9) i;

-- Chunk size: the collection's own, and back to the cluster's. Options that are not given stay unchanged.
SELECT docshard.configure_collection_balancing('bs.c', '{"chunkSize": 32}');
SELECT docshard.balancer_collection_status('bs.c');
SELECT docshard.configure_collection_balancing('bs.c', '{}');
SELECT chunk_size_mb, balance FROM docshard.collections WHERE namespace = 'bs.c';
SELECT docshard.configure_collection_balancing('bs.c', '{"chunkSize": null}');
SELECT chunk_size_mb FROM docshard.collections WHERE namespace = 'bs.c';
SELECT docshard.configure_collection_balancing('bs.c', '{"chunkSize": 2000}');
SELECT docshard.configure_collection_balancing('bs.c', '{"chunkSize": "large"}');
SELECT docshard.configure_collection_balancing('bs.c', '{"size": 5}');
SELECT docshard.configure_collection_balancing('bs.none', '{"chunkSize": 5}');

-- Balancing is switched off and on.
SELECT docshard.disable_balancing('bs.c');
SELECT docshard.balancer_collection_status('bs.c');
SELECT docshard.enable_balancing('bs.c');
SELECT balance FROM docshard.collections WHERE namespace = 'bs.c';
SELECT docshard.create_collection('bs.plain');
SELECT docshard.disable_balancing('bs.plain');
SELECT docshard.disable_balancing('bs.none');
SELECT docshard.disable_balancing('nodot');
SELECT docshard.balancer_collection_status('bs.plain');
SELECT docshard.balancer_collection_status('bs.none');

-- The window: it applies only if both ends are set.
SELECT docshard.set_setting('active_window_start', '23:00');
SELECT docshard.balancer_status()::jsonb ? 'activeWindow' AS has_window;
SELECT docshard.set_setting('active_window_stop', '06:00');
SELECT (docshard.balancer_status()::jsonb -> 'activeWindow') - 'open' AS "window";
SELECT docshard.set_setting('active_window_stop', '24:00');
SELECT docshard.set_setting('active_window_stop', '6:00');
SELECT docshard.set_setting('active_window_start', NULL);
SELECT docshard.set_setting('active_window_stop', NULL);
SELECT docshard.set_setting('throttle_mb_per_s', '-1');
SELECT docshard.set_setting('pause_ms', 'long');

-- The flag of a chunk that could not be split.
SELECT docshard.split_at('bs.c', '{"a": 5}');
UPDATE docshard_catalog.chunks SET jumbo = true WHERE collection_id = (SELECT id FROM docshard_catalog.collections WHERE namespace = 'bs.c');
SELECT docshard.clear_jumbo_flag('bs.c', '{"a": 7}');
SELECT docshard.clear_jumbo_flag('bs.c', '{"a": 7}');
SELECT min, jumbo FROM docshard.chunks WHERE namespace = 'bs.c' ORDER BY min_key;
SELECT docshard.clear_jumbo_flag('bs.c', '{"b": 7}');
SELECT docshard.clear_jumbo_flag('bs.plain', '{"_id": 7}');
SELECT what, details FROM docshard.changelog WHERE namespace = 'bs.c' ORDER BY id;
SELECT docshard.drop_database('bs');
