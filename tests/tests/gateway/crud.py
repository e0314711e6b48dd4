"""A collection by pymongo: crud.py PORT URI."""

import datetime
import decimal
import sys
import uuid

import bson
import pymongo
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

uri = sys.argv[2]
client = pymongo.MongoClient(uri, tz_aware=True)
db = client.shop
tools = db.tools


def failure(call):
    try:
        call()
    except OperationFailure as error:
        return error.code, error.details["codeName"]
    raise AssertionError("it succeeds")


def crud():
    assert tools.insert_one({"_id": 1, "kind": "saw", "teeth": [1, {"n": 2}]}).inserted_id == 1
    assert tools.find_one({"_id": 1}) == {"_id": 1, "kind": "saw", "teeth": [1, {"n": 2}]}
    made = tools.insert_one({"kind": "axe"}).inserted_id
    assert isinstance(made, bson.ObjectId) and tools.find_one({"_id": made})["kind"] == "axe"
    assert tools.update_one({"_id": 1}, {"$inc": {"n": 5}}).modified_count == 1
    assert tools.replace_one({"_id": made}, {"kind": "hammer"}).matched_count == 1
    assert tools.find_one_and_update({"_id": 1}, {"$set": {"n": 6}}, return_document=True)["n"] == 6
    assert tools.update_one({"_id": 9}, {"$set": {"n": 1}}, upsert=True).upserted_id == 9
    assert sorted(tools.distinct("kind")) == ["hammer", "saw"]
    assert tools.count_documents({}) == 3 and tools.estimated_document_count() == 3
    assert tools.delete_many({"n": {"$gte": 1}}).deleted_count == 2
    unacknowledged = db.get_collection("tools", write_concern=pymongo.WriteConcern(w=0))
    assert not unacknowledged.insert_one({"_id": "w0"}).acknowledged
    # It was executed when the next command of the same connection is.
    with pymongo.MongoClient(uri, maxPoolSize=1) as one:
        one.shop.get_collection("tools", write_concern=pymongo.WriteConcern(w=0)).insert_one({"_id": "w0b"})
        assert one.shop.tools.find_one({"_id": "w0b"})


def values():
    values = {
        "_id": "values",
        "double": 2.0,
        "nan": float("inf"),
        "text": "gr\u00fcn \U0001f600",
        "bytes": b"\x00\xff",
        "uuid": uuid.UUID(int=7),
        "bool": True,
        "date": datetime.datetime(1969, 7, 20, 20, 17, tzinfo=datetime.timezone.utc),
        "none": None,
        "regex": bson.Regex("^a", "i"),
        "code": bson.Code("f()"),
        "long": 1 << 40,
        "decimal": bson.Decimal128(decimal.Decimal("1.50")),
        "timestamp": bson.Timestamp(4, 2),
        "min": bson.MinKey(),
        "max": bson.MaxKey(),
        "deep": {"a": [[], {}, [{"b": None}]]},
    }
    options = CodecOptions(uuid_representation=UuidRepresentation.STANDARD, tz_aware=True)
    typed = db.get_collection("values", codec_options=options)
    typed.insert_one(values)
    found = typed.find_one({"_id": "values"})
    assert found == values, found
    assert all(type(found[name]) is type(value) for name, value in values.items() if name != "long")


def dollar_names():
    """Names that start with `$` or have a dot come back; what would be a value of Extended JSON is refused."""
    names = db.names
    for document in (
        {"_id": 1, "$a": 1, "zz": {"$b": {"x.y": 1, "$set": [{"$inc": 1}]}, "a.b": 2}, "$": {"$id": 1}},
        {"_id": 2, "link": bson.DBRef("c", bson.ObjectId(), "d"), "$ref": "c", "l": [{"$options": "i"}]},
        {"_id": 3, "v": {"xyz": 1, "$b": 2}},
    ):
        names.insert_one(document)
        assert names.find_one({"_id": document["_id"]}) == document
        assert list(names.find_one({"_id": document["_id"]})) == list(document)
    for value in ({"$oid": "0123456789abcdef01234567"}, {"$date": 1}, {"$regex": "a"}, {"$numberLong": "5", "a": 1}):
        assert failure(lambda: names.insert_one({"_id": 9, "v": value}))[0] in (9, 52)
        assert failure(lambda: names.insert_one({"_id": 9, **value}))[0] in (9, 52)
        assert failure(lambda: names.update_one({"_id": 1}, {"$set": {"v": value}}))[0] in (9, 52)
        assert failure(lambda: names.replace_one({"_id": 1}, {"v": value}))[0] in (9, 52)
        assert failure(lambda: names.find_one_and_update({"_id": 1}, {"$push": {"v": value}}))[0] in (9, 52)
    assert failure(lambda: names.insert_one({"_id": {"$a": 1}})) == (52, "DollarPrefixedFieldName")
    assert failure(lambda: names.update_one({"_id": 1}, {"$set": {"$a": 2}})) == (52, "DollarPrefixedFieldName")
    assert failure(lambda: names.replace_one({"_id": 1}, {"a": 1, "$a": 2})) == (52, "DollarPrefixedFieldName")
    assert names.find_one({"v": {"xyz": 1, "$b": 2}})["_id"] == 3
    assert names.find_one({"zz.$b.$set.$inc": 1})["_id"] == 1
    assert names.update_one({"_id": 3}, {"$set": {"v.$b": 3, "w": {"$c": 1}}}).modified_count == 1
    assert names.find_one({"_id": 3}) == {"_id": 3, "v": {"xyz": 1, "$b": 3}, "w": {"$c": 1}}
    assert names.update_one({"_id": 4}, {"$set": {"$a": 2}}, upsert=True).upserted_id == 4
    assert names.replace_one({"_id": 4}, {"a": {"$a": 3}}).modified_count == 1
    assert names.replace_one({"_id": 5}, {"a": 1, "$a": 3}, upsert=True).upserted_id == 5
    assert names.update_one({"_id": 4}, [{"$replaceWith": {"$literal": {"_id": 4, "$a": 4}}}]).modified_count == 1
    assert [names.find_one({"_id": n}) for n in (4, 5)] == [{"_id": 4, "$a": 4}, {"_id": 5, "a": 1, "$a": 3}]
    names.aggregate([{"$out": "names_copy"}])
    assert list(db.names_copy.find().sort("_id", 1)) == list(names.find().sort("_id", 1))


def bulk():
    result = db.bulk.bulk_write(
        [
            *(InsertOne({"_id": n, "n": n}) for n in range(300)),
            UpdateOne({"_id": 1}, {"$set": {"n": -1}}),
            UpdateMany({"n": {"$gte": 290}}, {"$set": {"big": True}}),
            ReplaceOne({"_id": 2}, {"n": -2}),
            UpdateOne({"_id": 1000}, {"$set": {"n": 0}}, upsert=True),
            DeleteOne({"_id": 3}),
            DeleteMany({"n": {"$lt": 0}}),
        ]
    )
    assert (result.inserted_count, result.modified_count, result.deleted_count) == (300, 12, 3)
    assert result.upserted_ids == {303: 1000}
    try:
        db.bulk.bulk_write([InsertOne({"_id": 5}), InsertOne({"_id": "new"})], ordered=False)
    except BulkWriteError as error:
        assert [failed["code"] for failed in error.details["writeErrors"]] == [11000]
        assert error.details["nInserted"] == 1


def cursors():
    many = db.many
    many.insert_many([{"_id": n, "k": n % 7} for n in range(5000)])
    assert [each["_id"] for each in many.find().sort("_id", 1).batch_size(37)] == list(range(5000))
    # Several cursors, read in turns.
    readers = [many.find({"k": k}).sort("_id", 1).batch_size(10) for k in range(7)]
    for n in range(700):
        for k, reader in enumerate(readers):
            assert next(reader)["_id"] == 7 * n + k
    for reader in readers:
        reader.close()
    # One that is killed is gone.
    batch = db.command("find", "many", batchSize=5)["cursor"]
    assert type(batch["id"]) is bson.Int64 and batch["id"] != 0 and len(batch["firstBatch"]) == 5
    reply = db.command("killCursors", "many", cursors=[batch["id"], bson.Int64(77)])
    assert reply["cursorsKilled"] == [batch["id"]] and reply["cursorsNotFound"] == [77]
    assert failure(lambda: db.command("getMore", batch["id"], collection="many")) == (43, "CursorNotFound")
    pipeline = [{"$match": {"k": {"$lt": 3}}}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
    assert list(many.aggregate(pipeline)) == [{"_id": 0, "n": 715}, {"_id": 1, "n": 715}, {"_id": 2, "n": 714}]
    assert len(list(many.aggregate([{"$match": {}}], batchSize=100))) == 5000


def indexes():
    things = db.indexed
    assert things.create_index([("a", 1)], unique=True) == "a_1"
    assert things.create_index([("b", -1), ("a", 1)]) == "b_-1_a_1"
    listed = {index["name"]: index for index in things.list_indexes()}
    assert set(listed) == {"_id_", "a_1", "b_-1_a_1"} and listed["a_1"]["unique"] is True
    things.insert_one({"a": 1})
    try:
        things.insert_one({"a": 1})
        raise AssertionError("a duplicate is inserted")
    except DuplicateKeyError as error:
        assert error.code == 11000 and error.details["keyPattern"] == {"a": 1}
    things.drop_index("a_1")
    assert set(things.index_information()) == {"_id_", "b_-1_a_1"}


def lists_and_errors():
    assert "shop" in client.list_database_names()
    assert {"tools", "values", "bulk", "many", "indexed"} <= set(db.list_collection_names())
    reply = db.command({"count": "many", "query": {}})
    assert type(reply["n"]) is int and type(reply["ok"]) is float and list(reply)[:2] == ["n", "ok"]
    assert failure(lambda: db.command("noSuchCommand")) == (59, "CommandNotFound")
    assert failure(lambda: tools.find_one({"a": {"$nope": 1}})) == (2, "BadValue")
    assert failure(lambda: db.command("find", "many", filter={}, maxTimeMS=-1))[0] in (2, 9)
    assert failure(lambda: db.command("shardCollection", "shop.x", key={"a": 1})) == (13, "Unauthorized")
    assert client.server_info()["maxBsonObjectSize"] == 16 << 20
    large = "x" * (15 << 20)
    db.large.insert_one({"_id": 1, "text": large})
    assert db.large.find_one()["text"] == large
    db.large.drop()
    assert "large" not in db.list_collection_names()


for step in (crud, values, dollar_names, bulk, cursors, indexes, lists_and_errors):
    step()
print("done")
