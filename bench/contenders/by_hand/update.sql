UPDATE inbox SET doc = jsonb_set(doc, '{likes}', to_jsonb((doc ->> 'likes')::int + 1)) WHERE recipient = :recipient AND sent = :sent;
