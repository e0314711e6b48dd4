SET max_parallel_workers_per_gather = 0;
SELECT name, count(*) AS n FROM typed, unnest(recipients) AS name GROUP BY 1;
