SELECT doc FROM tables.inbox WHERE recipient = :recipient AND sent = :sent;
