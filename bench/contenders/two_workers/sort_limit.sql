SET max_parallel_workers_per_gather = 2;
SELECT doc FROM inbox ORDER BY (doc ->> 'likes')::int DESC, doc ->> 'text' COLLATE "C" LIMIT 20;
