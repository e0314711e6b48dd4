SELECT message.doc || jsonb_build_object('author', jsonb_build_array(people.doc))
FROM (SELECT doc FROM inbox LIMIT 10000) AS message LEFT JOIN people ON people.name = message.doc ->> 'from';
