-- $$USER_ROLES: the roles of the caller, whoever owns the documents.
SELECT docshard.shard_collection('roles.c', '{"_id": "hashed"}');
SELECT docshard.insert_many('roles.c', ARRAY['{"_id": 1, "for": ["regress_clerk"]}', '{"_id": 2, "for": ["regress_manager", "regress_staff"]}',
  '{"_id": 3, "for": ["regress_manager"]}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_collection('roles.own', '{"viewOn": "c", "pipeline": [{"$match": {"$expr": {"$gt": [{"$size": {"$setIntersection": ["$for", "$$USER_ROLES.role"]}}, 0]}}}]}');
CREATE ROLE regress_staff;
CREATE ROLE regress_clerk LOGIN IN ROLE regress_staff;
CREATE ROLE regress_manager LOGIN;
SELECT docshard.grant_access('regress_clerk', '{"write": "roles"}'), docshard.grant_access('regress_manager', '{"read": "roles"}');

SET ROLE regress_clerk;
SELECT docshard.aggregate('roles.c', '[{"$match": {"_id": 1}}, {"$project": {"roles": "$$USER_ROLES"}}]');
SELECT docshard.find('roles.own', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.aggregate('roles.c', '[{"$redact": {"$cond": [{"$in": ["regress_clerk", "$for"]}, "$$KEEP", "$$PRUNE"]}}, {"$lookup": {"from": "own", "pipeline": [{"$sort": {"_id": 1}}, {"$project": {"_id": 1}}], "as": "own"}}]');
SELECT docshard.find('roles.c', '{"$expr": {"$in": ["regress_manager", "$$USER_ROLES.role"]}}');
SELECT docshard.update_one('roles.c', '{"_id": 1}', '[{"$set": {"by": "$$USER_ROLES.role"}}]') -> 'modifiedCount' AS modified;
SELECT docshard.aggregate('roles.c', '[{"$match": {"_id": 1}}, {"$merge": {"into": "c", "whenMatched": [{"$set": {"merged": {"$first": "$$USER_ROLES._id"}}}]}}]');
SET ROLE regress_manager;
SELECT docshard.find('roles.own', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.find_one('roles.c', '{"_id": 1}', '{"projection": {"by": 1, "merged": 1, "mine": "$$USER_ROLES.role", "same": {"$eq": ["$$r", "$$USER_ROLES"]}}, "let": {"r": "$$USER_ROLES"}}');
RESET ROLE;
-- A superuser is a member of every role.
SELECT docshard.count_documents('roles.own');

SELECT docshard.revoke_access('regress_clerk'), docshard.revoke_access('regress_manager');
DROP ROLE regress_clerk, regress_manager, regress_staff;
SELECT docshard.drop_database('roles');
