SELECT doc FROM inbox WHERE recipient = :recipient AND sent = :sent LIMIT 1;
