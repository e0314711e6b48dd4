SELECT count(*) FROM inbox WHERE (doc ->> 'likes')::int >= 40;
