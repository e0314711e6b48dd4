SELECT count(message.doc) FROM (SELECT unnest(recipient) AS recipient, unnest(sent) AS sent FROM bench.picks WHERE n < 100) AS local
  JOIN inbox AS message USING (recipient, sent);
