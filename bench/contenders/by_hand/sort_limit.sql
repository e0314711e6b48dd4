SELECT doc FROM inbox ORDER BY (doc ->> 'likes')::int DESC, doc ->> 'text' COLLATE "C" LIMIT 20;
