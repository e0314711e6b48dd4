-- From 0.1.0 to 0.2.0.

ALTER TABLE docshard_catalog.migrations ADD COLUMN outcome text NOT NULL DEFAULT 'running';
UPDATE docshard_catalog.migrations
   SET outcome = CASE WHEN state IN ('committed', 'moved') OR state = 'done' AND step = 'moved' THEN 'committed'
                      WHEN state = 'running' THEN 'running' ELSE 'aborted' END,
       step = CASE state WHEN 'done' THEN state ELSE step END;
ALTER TABLE docshard_catalog.migrations ADD CONSTRAINT migrations_outcome
    CHECK (CASE state WHEN 'moved' THEN outcome = 'committed' WHEN 'done' THEN outcome IN ('committed', 'aborted')
                      ELSE outcome = state END);
CREATE OR REPLACE VIEW docshard.migrations AS
SELECT m.id, m.namespace, d.name AS donor, r.name AS recipient, m.state, m.step, m.reason, m.documents, m.bytes, m.error,
       docshard_internal.bound_json(c.key::text, m.min) AS min,
       docshard_internal.bound_json(c.key::text, m.max) AS max,
       m.estimated, m.rounds, m.lag, m.stall_ms, m.attempts, m.durations, m.started_at, m.updated_at, m.outcome
  FROM docshard_catalog.migrations m
  LEFT JOIN docshard_catalog.collections c ON c.id = m.collection_id
  LEFT JOIN docshard_catalog.shards d ON d.id = m.donor
  LEFT JOIN docshard_catalog.shards r ON r.id = m.recipient;
COMMENT ON COLUMN docshard_catalog.migrations.outcome IS 'what was decided: running (nothing yet), committed or aborted; stays when the state is done';
COMMENT ON COLUMN docshard.migrations.outcome IS 'committed: the recipient owns the chunk, or will; aborted: the donor keeps it; running: nothing is decided';
