-- The balancer is started, stopped and observed; it drains a shard that is being removed.
SELECT s - 'lastRound' - 'lastError' - 'lastErrorAt' - 'activity' AS status FROM (SELECT docshard.balancer_status()::jsonb) AS b (s);
SELECT docshard.start_balancer();
SELECT docshard.balancer_status() ->> 'mode' AS mode;
SELECT docshard.stop_balancer();
SELECT docshard.stop_balancer(1000);
SELECT docshard.balancer_status() ->> 'mode' AS mode;
SELECT docshard.stop_balancer('soon');
\echo :LAST_ERROR_SQLSTATE
