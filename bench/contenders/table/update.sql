UPDATE tables.inbox SET likes = likes + 1 WHERE recipient = :recipient AND sent = :sent;
