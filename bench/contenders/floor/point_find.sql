SELECT point_find(:recipient, :sent);
