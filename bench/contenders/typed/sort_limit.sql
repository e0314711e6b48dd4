SET max_parallel_workers_per_gather = 0;
SELECT doc FROM typed ORDER BY likes DESC, body COLLATE "C" LIMIT 20;
