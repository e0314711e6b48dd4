"""Writes that pymongo sends again, as the gateway's build for tests drops answers and connections: retries.py PORT USER PASSWORD"""

import sys

import pymongo
from pymongo import InsertOne, UpdateOne
from pymongo.errors import AutoReconnect, PyMongoError

port, user, password = int(sys.argv[1]), *sys.argv[2:4]
client = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=60000)
things = client.test.things


def fail(commands, mode=None, **data):
    client.admin.command("configureFailPoint", "failCommand", mode=mode or {"times": 1}, data={"failCommands": commands, **data})


def n():
    return things.find_one({"_id": "counted"})["n"]


things.insert_one({"_id": "counted", "n": 0})
inc = {"$inc": {"n": 1}}
counted = {"_id": "counted"}
WRITES = [
    ("update", 1, lambda round: things.update_one(counted, inc).modified_count == 1),
    ("update", 1, lambda round: things.update_one({"n": {"$gte": 0}}, inc).modified_count == 1),
    ("update", 1, lambda round: things.update_one(counted, inc, upsert=True).upserted_id is None),
    ("update", 0, lambda round: things.update_one({"_id": f"new {round}"}, {"$inc": {"m": 1}}, upsert=True).upserted_id == f"new {round}"),
    ("findAndModify", 1, lambda round: things.find_one_and_update(counted, inc)["_id"] == "counted"),
    ("insert", 0, lambda round: things.insert_one({"of": round}).acknowledged),
    ("insert", 0, lambda round: len(things.insert_many([{"of": round} for _ in range(300)]).inserted_ids) == 300),
    ("delete", 0, lambda round: things.delete_one({"of": round}).deleted_count == 1),
    ("update", 3, lambda round: things.bulk_write([UpdateOne(counted, inc), InsertOne({"of": -round - 1}), UpdateOne(counted, {"$inc": {"n": 2}})]).modified_count == 2),
    ("bulkWrite", 1, lambda round: client.bulk_write([UpdateOne(counted, inc, namespace="test.things")]).modified_count == 1),
]
expected = 0
for round in range(3):
    for name, more, write in WRITES:
        for data in (
            {"closeConnection": True},
            {"closeConnection": True, "afterCommand": True},
            {"errorCode": 91},
            {"errorCode": 11602, "blockConnection": True, "blockTimeMS": 5},
        ):
            if name == "update" and more == 0 and things.find_one({"_id": f"new {round}"}):
                continue
            before = things.count_documents({"of": round})
            fail([name], **data)
            assert write(round), (name, data)
            expected += more
            assert n() == expected, (name, data, n(), expected)
            changed = things.count_documents({"of": round}) - before
            assert changed == {"insert": 1, "delete": -1}.get(name, 0) or name == "insert" and changed == 300, (name, data, changed)
    assert things.find_one({"_id": f"new {round}"})["m"] == 1

# Drivers send a write once more, and say what happened then.
fail(["update"], {"times": 2}, errorCode=91)
try:
    things.update_one(counted, inc)
    raise AssertionError("both attempts fail")
except PyMongoError as error:
    assert error.has_error_label("RetryableWriteError"), error
fail(["update"], {"times": 2}, closeConnection=True)
try:
    things.update_one(counted, inc)
    raise AssertionError("both attempts fail")
except AutoReconnect:
    pass
# Others are no reason to try again, nor are writes of many documents.
for write, code in ((lambda: things.update_one(counted, inc), 8), (lambda: things.update_many({}, inc), 91)):
    fail(["update"], errorCode=code)
    try:
        write()
        raise AssertionError("it fails")
    except PyMongoError as error:
        assert not error.has_error_label("RetryableWriteError"), error
client.admin.command("configureFailPoint", "failCommand", mode="off")
assert n() == expected
print("done")
