"""Commands that pymongo sends, besides those of documents: commands.py PORT URI."""

import datetime
import sys

import pymongo
from pymongo.errors import BulkWriteError, ClientBulkWriteException, OperationFailure, WriteError

port, uri = int(sys.argv[1]), sys.argv[2]
client = pymongo.MongoClient(uri)


def code(call):
    try:
        call()
    except OperationFailure as error:
        return error.code
    raise AssertionError("it succeeds")


def bulk_write():
    models = [
        pymongo.InsertOne(namespace="bulk.a", document={"_id": 1, "n": 1}),
        pymongo.InsertOne(namespace="bulk.b", document={"_id": 1}),
        pymongo.UpdateOne(namespace="bulk.a", filter={"_id": 1}, update={"$inc": {"n": 1}}),
        pymongo.UpdateMany(namespace="bulk.b", filter={}, update={"$set": {"n": 5}}),
        pymongo.ReplaceOne(namespace="bulk.b", filter={"_id": 9}, replacement={"n": 9}, upsert=True),
        pymongo.DeleteOne(namespace="bulk.a", filter={"_id": 77}),
        pymongo.DeleteMany(namespace="bulk.b", filter={"n": 5}),
    ]
    result = client.bulk_write(models, verbose_results=True)
    counts = (result.inserted_count, result.matched_count, result.modified_count, result.upserted_count, result.deleted_count)
    assert counts == (2, 2, 2, 1, 1), counts
    assert result.insert_results[0].inserted_id == 1
    assert result.update_results[4].upserted_id == 9 and result.update_results[2].modified_count == 1
    assert result.delete_results[5].deleted_count == 0 and result.delete_results[6].deleted_count == 1
    # More than one batch of results, and of writes.
    many = [pymongo.InsertOne(namespace=f"bulk.many{n % 3}", document={"_id": n}) for n in range(3000)]
    result = client.bulk_write(many, verbose_results=True, ordered=False)
    assert result.inserted_count == 3000 and len(result.insert_results) == 3000
    try:
        client.bulk_write(many[:4] + [pymongo.InsertOne(namespace="bulk.a", document={"_id": 2})], ordered=False)
        raise AssertionError("it succeeds")
    except ClientBulkWriteException as error:
        assert [failed["code"] for failed in error.write_errors] == [11000] * 4, error.write_errors
        assert error.write_errors[0]["keyPattern"] == {"_id": 1} and error.partial_result.inserted_count == 1


def order():
    """Specifications keep the order of their fields."""
    things = client.order.things
    things.create_index([("b", 1), ("a", 1)], partialFilterExpression={"z": {"$gt": 1}, "a": 5}, collation={"locale": "fr", "strength": 1})
    things.create_index([("z", -1), ("c", 1), ("b", 1)], name="second")
    listed = {index["name"]: index for index in things.list_indexes()}
    assert list(listed["b_1_a_1"]["key"].items()) == [("b", 1), ("a", 1)]
    assert list(listed["second"]["key"].items()) == [("z", -1), ("c", 1), ("b", 1)]
    assert list(listed["b_1_a_1"]["partialFilterExpression"]) == ["z", "a"]
    assert list(listed["b_1_a_1"]["collation"])[:3] == ["locale", "caseLevel", "caseFirst"]
    assert list(listed["second"])[:3] == ["v", "key", "name"]
    assert things.index_information()["b_1_a_1"]["key"] == [("b", 1), ("a", 1)]
    client.order.create_collection("view", viewOn="things", pipeline=[{"$sort": {"z": 1, "a": -1}}, {"$project": {"z": 1, "b": 1, "a": 1}}])
    view = next(client.order.list_collections(filter={"name": "view"}))
    assert [list(stage.values())[0] for stage in view["options"]["pipeline"]] == [{"z": 1, "a": -1}, {"z": 1, "b": 1, "a": 1}]
    assert list(view["options"]["pipeline"][1]["$project"]) == ["z", "b", "a"] and list(view) == ["name", "type", "options", "info"]


def collections():
    things = client.ren.things
    things.insert_many([{"_id": n, "n": n} for n in range(10)])
    things.create_index("n")
    renamed = things.rename("others")
    assert renamed["ok"] == 1 and client.ren.others.count_documents({}) == 10 and things.count_documents({}) == 0
    assert client.ren.command("collMod", "others", index={"name": "n_1", "hidden": True})["hidden_new"] is True
    assert next(index for index in client.ren.others.list_indexes() if index["name"] == "n_1")["hidden"] is True
    assert client.ren.validate_collection("others")["valid"] is True
    assert client.ren.command("dataSize", "ren.others")["numObjects"] == 10
    client.ren.others.insert_one({"_id": "old"})
    client.ren.things.insert_one({"_id": 1})
    assert code(lambda: client.ren.others.rename("things")) == 48
    client.ren.others.rename("things", dropTarget=True)
    assert client.ren.things.count_documents({}) == 11


def validators():
    """Documents are checked, and errors have MongoDB's errInfo, with its order of fields and its types."""
    schema = {"$jsonSchema": {"title": "guest", "required": ["name", "since"], "properties": {
        "age": {"bsonType": "int", "minimum": 0}, "since": {"bsonType": "date"}}}}
    guests = client.valid.create_collection("guests", validator=schema, validationAction="error")
    at = datetime.datetime(2024, 2, 29)
    guests.insert_one({"_id": 1, "name": "Ada", "since": at})
    try:
        guests.insert_one({"_id": 2, "age": -1, "name": "Bob", "since": 5})
        raise AssertionError("it succeeds")
    except WriteError as error:
        assert error.code == 121 and error.details["errmsg"] == "Document failed validation", error.details
        info = error.details["errInfo"]
        assert list(info) == ["failingDocumentId", "details"] and info["failingDocumentId"] == 2
        assert list(info["details"]) == ["operatorName", "title", "schemaRulesNotSatisfied"]
        (rule,) = info["details"]["schemaRulesNotSatisfied"]
        age, since = rule["propertiesNotSatisfied"]
        assert age["details"] == [{"operatorName": "minimum", "specifiedAs": {"minimum": 0}, "reason": "comparison failed", "consideredValue": -1}]
        assert list(since["details"][0]) == ["operatorName", "specifiedAs", "reason", "consideredValue", "consideredType"]
    requests = [pymongo.InsertOne({"_id": 3}), pymongo.InsertOne({"_id": 4, "name": "x", "since": at}), pymongo.UpdateOne({"_id": 1}, {"$set": {"age": "x"}})]
    try:
        guests.bulk_write(requests, ordered=False)
        raise AssertionError("it succeeds")
    except BulkWriteError as error:
        assert [(failed["index"], failed["code"], failed["errInfo"]["failingDocumentId"]) for failed in error.details["writeErrors"]] == [(0, 121, 3), (2, 121, 1)]
        assert error.details["nInserted"] == 1
    assert code(lambda: guests.find_one_and_update({"_id": 1}, {"$unset": {"name": 1}})) == 121
    guests.insert_one({"_id": 5}, bypass_document_validation=True)
    assert code(lambda: guests.update_one({"_id": 5}, {"$set": {"a": 1}})) == 121
    client.valid.command("collMod", "guests", validationLevel="moderate")
    assert guests.update_one({"_id": 5}, {"$set": {"a": 1}}).modified_count == 1
    options = next(client.valid.list_collections(filter={"name": "guests"}))["options"]
    assert options == {"validator": schema, "validationAction": "error", "validationLevel": "moderate"}, options
    # Values of the document and of the filter are what they are, and an operator is no value.
    typed = client.valid.create_collection("typed", validator={"at": {"$gt": at}, "kind": {"$type": "string"}, "key": {"$regex": "^k", "$options": "i"}})
    try:
        typed.insert_one({"_id": 1, "at": at, "kind": 1, "key": "x"})
        raise AssertionError("it succeeds")
    except WriteError as error:
        clauses = [clause["details"] for clause in error.details["errInfo"]["details"]["clausesNotSatisfied"]]
        assert [(clause["specifiedAs"], clause["consideredValue"]) for clause in clauses] == [
            ({"at": {"$gt": at}}, at), ({"kind": {"$type": "string"}}, 1), ({"key": {"$regex": "^k", "$options": "i"}}, "x")], clauses
    client.valid.source.insert_one({"_id": 9})
    assert code(lambda: client.valid.source.aggregate([{"$out": "typed"}])) == 121
    client.valid.source.aggregate([{"$merge": "typed"}], bypassDocumentValidation=True)
    assert typed.count_documents({}) == 1


def server():
    assert client.admin.command("serverStatus")["process"] == "mongos"
    assert client.admin.command("hostInfo")["system"]["numCores"] >= 1
    assert client.admin.command({"getParameter": 1, "featureCompatibilityVersion": 1})["featureCompatibilityVersion"] == {"version": "8.0"}
    assert client.admin.command("getDefaultRWConcern")["defaultWriteConcern"]["w"] == "majority"
    assert code(lambda: client.admin.command("top")) == 59
    with client.admin.aggregate([{"$currentOp": {"allUsers": True}}]) as cursor:
        assert any(operation["active"] for operation in cursor)
    # What drivers add to any command.
    strict = pymongo.MongoClient(uri, server_api=pymongo.server_api.ServerApi("1", strict=True, deprecation_errors=True))
    assert strict.order.things.find_one({"a": 1}) is None
    assert code(lambda: strict.admin.command("serverStatus")) == 323
    preferring = client.get_database("order", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)
    assert list(preferring.things.find({}, comment={"from": "a test"})) == []


def users():
    """Users by command; the password is checked by PostgreSQL, and none is in its log."""
    db = client.social
    db.inbox.insert_one({"_id": 1})
    db.command("createUser", "carl", pwd="pässword of carl", roles=["read"])
    connect = lambda password: pymongo.MongoClient("127.0.0.1", port, username="carl", password=password, authSource="social")
    with connect("pässword of carl") as carl:
        assert carl.social.inbox.find_one() == {"_id": 1}
        assert code(lambda: carl.social.inbox.insert_one({})) == 13
        assert code(lambda: carl.social.command("createUser", "eve", pwd="x", roles=[])) == 13
        db.command("grantRolesToUser", "carl", roles=["readWrite"])
        carl.social.inbox.insert_one({"_id": 2})
    db.command("updateUser", "carl", pwd="another password")
    with connect("pässword of carl") as carl:
        assert code(lambda: carl.social.inbox.find_one()) == 18
    with connect("another password") as carl:
        assert carl.social.inbox.count_documents({}) == 2
    user = db.command("usersInfo", "carl")["users"][0]
    assert (user["user"], user["db"], user["roles"]) == ("carl", "social", [{"role": "readWrite", "db": "social"}])
    assert code(lambda: db.command("createUser", "carl", pwd="x", roles=[])) == 51003
    db.command("dropUser", "carl")
    with connect("another password") as carl:
        assert code(lambda: carl.social.inbox.find_one()) == 18
    assert code(lambda: db.command("dropUser", "carl")) == 11
    # Whatever field comes first, and where else a password may be.
    db.command({"$db": "social", "createUser": "dora", "pwd": "hidden password", "roles": []})
    assert code(lambda: db.command({"$db": "social", "createUser": "dora", "pwd": "hidden password", "roles": []})) == 51003
    db.command({"updateUser": "dora", "roles": []})
    db.command("dropUser", "dora")
    assert code(lambda: db.command({"explain": {"createUser": "dora", "pwd": "hidden password"}})) == 59
    assert code(lambda: db.command({"createUser": "dora", "pwd": {"is": "hidden password"}, "roles": []})) == 14
    for wrong in [{"createuser": "dora", "pwd": "hidden password"}, {"createUser": "dora", "passwd": "hidden password", "roles": []}]:
        assert code(lambda: db.command(wrong)) in (9, 59, 40414, 40415)
    assert code(lambda: db.command({"$db": "social", "getLastError": 1})) == 59


for step in (bulk_write, order, collections, validators, server, users):
    step()
print("done")
