SELECT inbox_view(:recipient);
