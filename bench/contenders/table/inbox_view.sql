SELECT doc FROM tables.inbox WHERE recipient = :recipient ORDER BY sent DESC LIMIT 20;
