SELECT insert_one(:recipient, :sent, :author, :doc);
