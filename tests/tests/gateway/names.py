"""Names and definitions that PostgreSQL cannot store, and names of others: names.py PORT USER PASSWORD ROLE ITS_PASSWORD. The role may read the
collection `test.things`."""

import sys

import pymongo

port, user, password, role, its_password = int(sys.argv[1]), *sys.argv[2:6]
NUL = "a\0b"


def client(name, secret):
    return pymongo.MongoClient("127.0.0.1", port, username=name, password=secret)


def code(database, *command, **fields):
    return database.command(*command, check=False, **fields).get("code")


with client(user, password) as it:
    shop = it.shop
    shop.items.insert_one({"_id": 1})
    shop.create_collection("view", viewOn="items", pipeline=[])
    # A definition with a NUL could be stored, but the lists that show it would fail.
    for command, fields in (
        (("create", "broken"), {"viewOn": "items", "pipeline": [{"$match": {"x": NUL}}]}),
        (("create", "broken"), {"viewOn": "items", "pipeline": [{"$match": {"$expr": {"$eq": ["$x", [{"y": NUL}]]}}}]}),
        (("collMod", "view"), {"viewOn": "items", "pipeline": [{"$match": {"x": NUL}}]}),
        (("create", "broken"), {"validator": {"x": NUL}}),
        (("create", "broken"), {"validator": {"$jsonSchema": {"description": NUL}}}),
        (("collMod", "items"), {"validator": {"x": {"$ne": NUL}}}),
        (("createIndexes", "items"), {"indexes": [{"key": {"n": 1}, "name": NUL}]}),
        (("createIndexes", "items"), {"indexes": [{"key": {"n": 1}, "name": "n", "partialFilterExpression": {"x": NUL}}]}),
        (("createIndexes", "items"), {"indexes": [{"key": {"$**": 1}, "name": NUL, "wildcardProjection": {"x": 1}}]}),
    ):
        assert code(shop, *command, **fields) == 2, (command, fields)
    assert sorted(each["name"] for each in shop.list_collections()) == ["items", "view"]
    assert list(shop.items.index_information()) == ["_id_"]

# Whoever may not read a collection is not told whether there is one.
with client(role, its_password) as it:
    assert it.test.things.find_one() is None
    for name in ("items", "missing", "view"):
        for command, fields in (
            (("find", name), {}),
            (("count", name), {}),
            (("count", name), {"query": {"x": 1}}),
            (("distinct", name), {"key": "x"}),
            (("aggregate", name), {"pipeline": [], "cursor": {}}),
            (("aggregate", name), {"pipeline": [{"$group": {"_id": "$x"}}], "cursor": {}}),
            (("explain", {"find": name}), {}),
        ):
            assert code(it.shop, *command, **fields) == 13, (name, command)
    assert code(it.test, "aggregate", "things", pipeline=[{"$unionWith": "missing"}], cursor={}) == 13
    assert it.test.command("aggregate", 1, pipeline=[{"$documents": [{"x": 1}]}], cursor={})["cursor"]["firstBatch"] == [{"x": 1}]
    assert it.config.missing.find_one() is None
with client(user, password) as it:
    assert it.shop.missing.find_one() is None
print("done")
