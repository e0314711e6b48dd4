INSERT INTO inbox (recipient, sent, author, doc) VALUES (:recipient, :sent, :author, :doc);
