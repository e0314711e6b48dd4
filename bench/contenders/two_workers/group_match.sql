SET max_parallel_workers_per_gather = 2;
SELECT doc ->> 'from' AS author, sum((doc ->> 'likes')::int) AS likes, avg((doc ->> 'likes')::int) AS mean FROM inbox WHERE (doc ->> 'likes')::int >= 10 GROUP BY 1;
