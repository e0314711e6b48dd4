-- The identity of a shard, as read by a shard that pulls documents from it.

CREATE VIEW docshard_data.identity AS SELECT docshard_internal.identity() AS said;
COMMENT ON VIEW docshard_data.identity IS 'Which shard this is and how far it has come, as another one that pulls documents compares it: cluster/timeline/counter/shard';
