SET max_parallel_workers_per_gather = 0;
SELECT message.doc || jsonb_build_object('author', jsonb_build_array(people.doc))
FROM (SELECT doc FROM inbox LIMIT 10000) AS message LEFT JOIN people ON people.name = message.doc ->> 'from';
