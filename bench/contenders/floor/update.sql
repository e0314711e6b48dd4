SELECT update_one(:recipient, :sent);
