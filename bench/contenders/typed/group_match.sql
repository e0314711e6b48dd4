SET max_parallel_workers_per_gather = 0;
SELECT author, sum(likes) AS likes, avg(likes) AS mean FROM typed WHERE likes >= 10 GROUP BY 1;
