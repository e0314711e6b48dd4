-- Commands about sessions. A router checks them, and has no sessions: they are the gateway's.
CREATE FUNCTION codes(VARIADIC commands json[]) RETURNS TABLE (command json, code text) LANGUAGE sql AS $$
  SELECT one, coalesce(docshard.run_command('admin', one) ->> 'code', 'ok') FROM unnest(commands) AS one $$;
\t on
SELECT jsonb_object_keys(docshard.run_command('admin', '{"startSession": 1}'));
\set id '{"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}'

-- Fields that they do not know are ignored; those of all commands are not.
SELECT * FROM codes('{"startSession": "x", "unknown": 1}', '{"startSession": 1, "maxTimeMS": 1.5}', '{"killSessions": [], "readConcern": {"level": "majority"}}',
  '{"endSessions": [], "writeConcern": {"w": 1}}', '{"refreshSessions": [], "comment": {"a": 1}}', '{"killAllSessions": [], "apiVersion": "1", "apiStrict": true}');
-- Sessions are documents with a UUID.
SELECT * FROM codes('{"killSessions": 1}', '{"killSessions": null}', format('{"killSessions": [{"id": %s}, null]}', :'id')::json, '{"endSessions": [5]}', '{"endSessions": [{}]}',
  format('{"endSessions": [{"id": %s, "other": 1}]}', :'id')::json, '{"refreshSessions": [{"id": "x"}]}', '{"refreshSessions": [{"id": {"$binary": {"base64": "AAAA", "subType": "00"}}}]}',
  '{"refreshSessions": [{"id": {"$binary": {"base64": "AAAA", "subType": "04"}}}]}');
-- Nobody kills sessions of another user.
CREATE ROLE sessions_other;
SELECT * FROM codes('{"killAllSessions": [{"user": "sessions_other", "db": "admin"}]}', '{"killAllSessions": [{"user": "nobody at all", "db": "x"}]}', '{"killAllSessions": [{"user": "x"}]}',
  '{"killAllSessions": [{"user": 1, "db": "x"}]}', '{"killAllSessions": [{"user": "x", "db": "x", "other": 1}]}');
SELECT docshard.run_command('admin', format('{"killAllSessions": [{"user": "%s", "db": "admin"}]}', current_user)::json);
SELECT * FROM codes('{"killAllSessionsByPattern": [{}]}', format('{"killAllSessionsByPattern": [{"lsid": {"id": %s}}]}', :'id')::json, '{"killAllSessionsByPattern": [{"lsid": {"id": 1}}]}',
  '{"killAllSessionsByPattern": [{"users": [{"user": "x", "db": "x"}]}]}', '{"killAllSessionsByPattern": [{"other": 1}]}');
DROP ROLE sessions_other;
DROP FUNCTION codes(json[]);
