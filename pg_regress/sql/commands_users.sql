-- Users and roles of MongoDB are PostgreSQL's roles. A password comes as a verifier.
CREATE FUNCTION run(db text, command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command(db, command) $$;
\set verifier 'SCRAM-SHA-256$15000:YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYg==$MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE='
SELECT docshard.create_collection('usr.a');

-- Here the shards are databases of one server, which see no role that is not committed.
SELECT run('usr', json_build_object('createUser', 'regress_ann', 'pwd', :'verifier', 'roles', '["readWrite"]'::json)) ->> 'codeName' AS with_roles;
SELECT run('usr', json_build_object('createUser', 'regress_ann', 'pwd', :'verifier', 'roles', '[]'::json)), run('usr', '{"usersInfo": "regress_ann"}') AS none_yet;
SELECT run('usr', '{"grantRolesToUser": "regress_ann", "roles": ["readWrite", {"role": "read", "db": "social"}]}');
SELECT rolcanlogin, rolsuper, rolpassword = :'verifier' AS is_stored FROM pg_authid WHERE rolname = 'regress_ann';
SELECT * FROM docshard.grants WHERE role = 'regress_ann' ORDER BY resource;
SELECT run('usr', '{"usersInfo": "regress_ann"}');
SELECT run('admin', '{"usersInfo": {"user": "regress_ann", "db": "usr"}}') #> '{users,0,_id}' AS id, run('usr', '{"usersInfo": "nobody"}') AS nobody;
SELECT run('admin', '{"usersInfo": {"forAllDBs": true}, "filter": {"user": "regress_ann"}}') #> '{users,0,db}' AS db, run('usr', '{"usersInfo": ["regress_ann", "regress_ann"], "showCredentials": true}') ->> 'codeName' AS secret;

SELECT run('usr', json_build_object('createUser', 'regress_ann', 'pwd', :'verifier', 'roles', '[]'::json)) ->> 'errmsg' AS again;
SELECT run('usr', '{"createUser": "regress_bob", "pwd": "clear text", "roles": []}') - 'hint' AS clear;
SELECT count(*) FROM pg_roles WHERE rolname = 'regress_bob';
SELECT run('usr', '{"createUser": "regress_bob", "roles": []}') ->> 'codeName' AS none, run('usr', json_build_object('createUser', 'docshard_x', 'pwd', :'verifier', 'roles', '[]'::json)) ->> 'codeName' AS reserved,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', :'verifier', 'roles', '["dbAdmin"]'::json)) ->> 'codeName' AS db_admin,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', :'verifier', 'roles', '["root"]'::json)) ->> 'codeName' AS root_of_usr,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', :'verifier', 'roles', '[{"role": "clusterAdmin", "db": "admin"}]'::json)) ->> 'codeName' AS cluster_admin,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', :'verifier', 'roles', '["no_such_role"]'::json)) ->> 'codeName' AS unknown,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', :'verifier', 'roles', '[3]'::json)) ->> 'codeName' AS number,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', :'verifier', 'roles', '[]'::json, 'mechanisms', '["SCRAM-SHA-1"]'::json)) ->> 'codeName' AS mechanism,
       run('usr', json_build_object('createUser', 'regress_bob', 'pwd', 7, 'roles', '[]'::json)) ->> 'codeName' AS type;

-- Roles.
SELECT run('usr', '{"createRole": "regress_readers", "roles": [], "privileges": [{"resource": {"db": "usr", "collection": "a"}, "actions": ["find"]}]}') ->> 'codeName' AS with_privileges;
SELECT run('usr', '{"createRole": "regress_readers", "roles": [], "privileges": []}');
SELECT run('usr', '{"grantRolesToRole": "regress_readers", "roles": ["read"]}');
SELECT run('usr', '{"rolesInfo": "regress_readers"}'), run('usr', '{"rolesInfo": "read"}');
SELECT run('usr', '{"createRole": "regress_readers", "roles": [], "privileges": []}') ->> 'errmsg' AS again,
       run('usr', '{"createRole": "regress_more", "roles": [], "privileges": [{"resource": {"db": "usr", "collection": ""}, "actions": ["find", "shutdown"]}]}') ->> 'codeName' AS action,
       run('usr', '{"createRole": "regress_more", "roles": [], "privileges": [{"resource": {"db": "usr", "collection": ""}, "actions": ["insert"]}]}') ->> 'codeName' AS insert,
       run('usr', '{"createRole": "regress_more", "roles": [], "privileges": [{"resource": {"cluster": true}, "actions": ["find"]}]}') ->> 'codeName' AS cluster;
SELECT run('usr', '{"grantRolesToUser": "regress_ann", "roles": ["regress_readers", {"role": "clusterMonitor", "db": "admin"}]}');
SELECT run('usr', '{"usersInfo": "regress_ann"}') #> '{users,0,roles}' AS roles;
SELECT run('usr', '{"revokeRolesFromUser": "regress_ann", "roles": ["readWrite", "regress_readers", {"role": "clusterMonitor", "db": "admin"}, {"role": "root", "db": "admin"}]}');
SELECT run('usr', '{"usersInfo": "regress_ann"}') #> '{users,0,roles}' AS roles;
SELECT run('usr', '{"updateUser": "regress_ann", "roles": [{"role": "readAnyDatabase", "db": "admin"}]}'), run('usr', json_build_object('updateUser', 'regress_ann', 'pwd', :'verifier'));
SELECT run('usr', '{"usersInfo": "regress_ann"}') #> '{users,0,roles}' AS roles;
SELECT run('usr', '{"updateUser": "regress_ann"}') ->> 'errmsg' AS nothing, run('usr', '{"updateUser": "nobody", "roles": []}') ->> 'codeName' AS nobody, run('usr', '{"dropUser": "regress_readers"}') ->> 'codeName' AS a_role,
       run('usr', '{"grantRolesToUser": "nobody", "roles": []}') ->> 'codeName' AS nobody, run('usr', '{"dropRole": "none"}') ->> 'codeName' AS none;

-- A caller needs PostgreSQL's right to create roles, and those to grant.
CREATE ROLE regress_plain;
CREATE ROLE regress_maker;
SELECT docshard.grant_access('regress_plain'), docshard.grant_access('regress_maker');
ALTER ROLE regress_maker CREATEROLE;
SET ROLE regress_plain;
SELECT run('usr', json_build_object('createUser', 'regress_eve', 'pwd', :'verifier', 'roles', '[]'::json)) - 'hint' AS refused;
SELECT run('usr', json_build_object('updateUser', 'regress_ann', 'pwd', :'verifier')) ->> 'codeName' AS refused;
SELECT run('usr', '{"dropUser": "regress_ann"}') ->> 'codeName' AS refused, run('usr', '{"grantRolesToUser": "regress_ann", "roles": [{"role": "root", "db": "admin"}]}') ->> 'codeName' AS root,
       run('usr', '{"grantRolesToUser": "regress_ann", "roles": ["readWrite"]}') ->> 'errmsg' AS granting;
SET ROLE regress_maker;
SELECT run('usr', json_build_object('createUser', 'regress_eve', 'pwd', :'verifier', 'roles', '["read"]'::json)) ->> 'errmsg' AS granting;
SELECT run('usr', json_build_object('createUser', 'regress_eve', 'pwd', :'verifier', 'roles', '[]'::json)), run('usr', '{"dropUser": "regress_eve"}');
RESET ROLE;

-- PostgreSQL's and docshard's own roles are no users, and are not given.
CREATE ROLE docshard_regress LOGIN CREATEROLE;
SET ROLE regress_maker;
SELECT run('usr', json_build_object('updateUser', 'docshard_regress', 'pwd', :'verifier')) ->> 'codeName' AS password, run('usr', '{"dropUser": "docshard_regress"}') ->> 'codeName' AS gone,
       run('usr', '{"grantRolesToUser": "docshard_regress", "roles": []}') ->> 'codeName' AS given, run('usr', '{"dropRole": "pg_read_all_data"}') ->> 'codeName' AS of_pg,
       run('usr', '{"grantRolesToUser": "regress_ann", "roles": ["pg_read_server_files"]}') ->> 'codeName' AS files,
       run('usr', json_build_object('createUser', 'regress_eve', 'pwd', :'verifier', 'roles', '["pg_execute_server_program"]'::json)) ->> 'codeName' AS program;
SELECT run('usr', json_build_object('createUser', '', 'pwd', :'verifier', 'roles', '[]'::json)) ->> 'errmsg' AS empty, run('usr', '{"createRole": "", "roles": [], "privileges": []}') ->> 'codeName' AS empty_role,
       docshard.run_command('usr', json_build_object('usersInfo', array_fill('x'::text, ARRAY[10001]))) ->> 'codeName' AS many_users, docshard.run_command('usr', json_build_object('killCursors', 'a', 'cursors', array_fill(1, ARRAY[10001]))) ->> 'codeName' AS many_cursors;
RESET ROLE;
DROP ROLE docshard_regress;
SELECT run('usr', '{"dropUser": "regress_ann"}'), run('usr', '{"dropRole": "regress_readers"}');
SELECT rolname FROM pg_roles WHERE rolname ~ '^regress_(ann|eve|readers|bob|more)';
ALTER ROLE regress_maker NOCREATEROLE;
SELECT docshard.revoke_access('regress_plain'), docshard.revoke_access('regress_maker');
DROP ROLE regress_plain;
DROP ROLE regress_maker;
SELECT docshard.drop_database('usr');
DROP FUNCTION run;
