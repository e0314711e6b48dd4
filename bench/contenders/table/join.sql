SELECT count(message.doc) FROM (SELECT unnest(recipient) AS recipient, unnest(sent)::timestamptz AS sent FROM bench.picks WHERE n < 100) AS local
  JOIN tables.inbox AS message USING (recipient, sent);
