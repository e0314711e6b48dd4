SET max_parallel_workers_per_gather = 2;
SELECT name, count(*) AS n FROM inbox, jsonb_array_elements_text(doc -> 'to') AS name GROUP BY 1;
