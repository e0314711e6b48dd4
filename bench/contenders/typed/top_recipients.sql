SET max_parallel_workers_per_gather = 0;
SELECT recipient, count(*) AS n FROM typed GROUP BY 1 ORDER BY n DESC LIMIT 10;
