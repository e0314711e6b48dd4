SET max_parallel_workers_per_gather = 2;
SELECT doc ->> 'recipient' AS recipient, count(*) AS n FROM inbox GROUP BY 1 ORDER BY n DESC LIMIT 10;
