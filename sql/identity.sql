-- The identity of a shard, as read by a shard that pulls documents from it.

CREATE VIEW docshard_data.identity AS SELECT docshard_internal.identity() AS said;
COMMENT ON VIEW docshard_data.identity IS 'The identity and position of this shard, which another shard compares before it pulls documents: cluster/timeline/counter/shard';
