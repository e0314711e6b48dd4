SELECT doc FROM inbox WHERE recipient = :recipient ORDER BY sent DESC LIMIT 20;
