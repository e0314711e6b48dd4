"""What a driver stores comes back, byte for byte: order.py PORT URI [again]."""

import sys

import bson
import pymongo
from bson import SON, Int64, ObjectId, encode
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument, UpdateOne

client = pymongo.MongoClient(sys.argv[2])
db = client.get_database("shop", codec_options=pymongo.MongoClient().codec_options.with_options(document_class=RawBSONDocument))
orders = db.orders

DOCUMENTS = [
    {"_id": n, "zone": "z", "b": Int64(n), "a": {"y": 1, "x": [{"d": Int64(7), "c": 2.0}], "list": [Int64(1), 2]}, "count": n}
    for n in range(300)
]


def same(found, expected):
    assert found is not None and bytes(found.raw) == encode(expected), (dict(found or {}), expected)


def read(_id=1):
    return orders.find_one({"_id": _id})


def updated(update, expected, **options):
    orders.update_one({"_id": 1}, update, **options)
    same(read(), expected)


def documents():
    for found, expected in zip(orders.find(batch_size=7).sort("_id", 1), DOCUMENTS, strict=True):
        same(found, expected)
    for found, expected in zip(orders.find({"count": {"$gte": 100, "$lt": 200}}), DOCUMENTS[100:200], strict=True):
        same(found, expected)


def inserts():
    orders.insert_one(DOCUMENTS[0])
    orders.insert_many(DOCUMENTS[1:])
    documents()
    # The _id comes first, also one that is made.
    db.other.insert_one({"b": 1, "_id": "later", "a": 2})
    same(db.other.find_one({"_id": "later"}), {"_id": "later", "b": 1, "a": 2})
    made = db.other.insert_one(RawBSONDocument(encode({"b": 1, "a": 2}))).inserted_id
    if made is None:
        made = ObjectId(db.other.find_one({"b": 1, "_id": {"$type": "objectId"}})["_id"])
    same(db.other.find_one({"_id": made}), {"_id": made, "b": 1, "a": 2})


def updates():
    base = {"_id": 1, "zone": "z", "b": Int64(1)}
    orders.replace_one({"_id": 1}, {"zone": "z", "b": Int64(1)})
    same(read(), base)
    updated({"$set": {"n": {"y": Int64(1), "x": 2}, "m": 3}}, base := {**base, "m": 3, "n": {"y": Int64(1), "x": 2}})
    updated({"$set": {"zone": "y", "n.a": Int64(5)}}, base := {**base, "zone": "y", "n": {"y": Int64(1), "x": 2, "a": Int64(5)}})
    updated({"$inc": {"b": 1, "m": Int64(1), "o": Int64(3)}}, base := {**base, "b": Int64(2), "m": Int64(4), "o": Int64(3)})
    updated({"$unset": {"zone": ""}}, base := {name: value for name, value in base.items() if name != "zone"})
    updated({"$push": {"p": {"$each": [{"b": 1, "a": Int64(2)}], "$slice": Int64(5)}}}, base := {**base, "p": [{"b": 1, "a": Int64(2)}]})
    updated({"$rename": {"m": "A"}}, base := {**{name: value for name, value in base.items() if name != "m"}, "A": Int64(4)})
    updated([{"$set": {"z": {"b": 1, "a": "$b"}}}, {"$unset": "o"}],
            base := {**{name: value for name, value in base.items() if name != "o"}, "z": {"b": 1, "a": Int64(2)}})
    found = orders.find_one_and_update({"_id": 1}, {"$set": {"b": "s"}}, return_document=ReturnDocument.AFTER)
    same(found, base := {**base, "b": "s"})
    found = orders.find_one_and_replace({"_id": 1}, {"y": 1, "x": Int64(2)}, return_document=ReturnDocument.AFTER)
    same(found, {"_id": 1, "y": 1, "x": Int64(2)})
    orders.bulk_write([UpdateOne({"_id": 1}, {"$set": {"k": {"b": 1, "a": 1}}})])
    same(read(), {"_id": 1, "y": 1, "x": Int64(2), "k": {"b": 1, "a": 1}})
    orders.update_many({"_id": {"$gte": 1, "$lt": 3}}, {"$set": {"new": 1, "k.A": 2}})
    same(read(), {"_id": 1, "y": 1, "x": Int64(2), "k": {"b": 1, "a": 1, "A": 2}, "new": 1})
    same(read(2), {**DOCUMENTS[2], "k": {"A": 2}, "new": 1})
    # New documents.
    orders.update_one({"zone": "u", "b": 1, "_id": 1001}, {"$set": {"y": Int64(1), "x": {"b": 1, "a": 2}}}, upsert=True)
    same(read(1001), {"_id": 1001, "zone": "u", "b": 1, "x": {"b": 1, "a": 2}, "y": Int64(1)})
    orders.replace_one({"_id": 1002}, {"y": Int64(1), "x": 2}, upsert=True)
    same(read(1002), {"_id": 1002, "y": Int64(1), "x": 2})
    orders.replace_one({"_id": Int64(1003)}, {"_id": Int64(1003), "a": Int64(1)}, upsert=True)
    same(read(1003), {"_id": Int64(1003), "a": Int64(1)})
    orders.update_one({"_id": Int64(1004), "k": {"b": Int64(1), "a": 2}}, {"$set": {"n": 1}}, upsert=True)
    same(read(1004), {"_id": Int64(1004), "k": {"b": Int64(1), "a": 2}, "n": 1})
    orders.find_one_and_update({"_id": Int64(1005)}, {"$set": {"n": 1}}, upsert=True)
    same(read(1005), {"_id": Int64(1005), "n": 1})
    orders.delete_many({"_id": {"$gte": 1000}})
    for n in (1, 2):
        orders.replace_one({"_id": n}, DOCUMENTS[n])


def projections():
    def project(projection, expected):
        same(orders.find_one({"_id": 5}, projection), expected)
        *_, found = orders.aggregate([{"$match": {"_id": {"$lte": 5}}}, {"$sort": {"_id": 1}}, {"$project": projection}])
        same(found, expected)

    db.orders.create_index([("count", 1), ("b", -1)])
    covered = orders.find({"count": {"$gt": 4}}, {"count": 1, "b": 1, "_id": 0}).sort("count", 1)
    same(covered[0], {"b": Int64(5), "count": 5})
    whole = DOCUMENTS[5]
    project({"count": 1, "zone": 1, "b": 1}, {"_id": 5, "zone": "z", "b": Int64(5), "count": 5})
    project({"a.x": 1, "_id": 0, "zone": 1}, {"zone": "z", "a": {"x": whole["a"]["x"]}})
    project({"a.y": 0, "b": 0}, {"_id": 5, "zone": "z", "a": {"x": whole["a"]["x"], "list": whole["a"]["list"]}, "count": 5})
    project({"count": 1, "zz": "$a", "A": {"b": "$b", "a": "$count"}, "b": 1},
            {"_id": 5, "b": Int64(5), "count": 5, "zz": whole["a"], "A": {"b": Int64(5), "a": 5}})


WHOLE = DOCUMENTS[5]
LITERAL = {"b": {"y": Int64(1), "x": 2}, "a": [{"d": 1, "c": 2}]}
FIELDS = [{"k": "b", "v": LITERAL["b"]}, {"k": "a", "v": LITERAL["a"]}]
# Expressions, and their values for the sixth document.
EXPRESSIONS = [
    ({"$literal": LITERAL}, LITERAL),
    ({"b": "$_id", "a": {"d": "$b", "c": {"$literal": LITERAL}}}, {"b": 5, "a": {"d": Int64(5), "c": LITERAL}}),
    ({"b": {"$add": ["$_id", Int64(1)]}, "a": [Int64(1), 1]}, {"b": Int64(6), "a": [Int64(1), 1]}),
    ([LITERAL, "$a"], [LITERAL, WHOLE["a"]]),
    ({"$mergeObjects": [LITERAL, {"B": 1, "A": 2}]}, {**LITERAL, "B": 1, "A": 2}),
    ({"$mergeObjects": ["$a", {"B": 1, "A": 2}]}, {**WHOLE["a"], "B": 1, "A": 2}),
    ({"$arrayToObject": {"$literal": [["b", LITERAL], ["a", 2]]}}, {"b": LITERAL, "a": 2}),
    ({"$objectToArray": {"$literal": LITERAL}}, FIELDS),
    ({"$objectToArray": LITERAL}, FIELDS),
    ({"$objectToArray": "$a"}, [{"k": name, "v": value} for name, value in WHOLE["a"].items()]),
    ({"$arrayToObject": {"$objectToArray": "$a"}}, WHOLE["a"]),
    ({"$setField": {"field": "A", "input": LITERAL, "value": LITERAL}}, {**LITERAL, "A": LITERAL}),
    ({"$setField": {"field": "A", "input": "$a", "value": 1}}, {**WHOLE["a"], "A": 1}),
    ({"$unsetField": {"field": "x", "input": "$a"}}, {"y": 1, "list": WHOLE["a"]["list"]}),
    ({"$getField": {"field": "A", "input": {"A": LITERAL}}}, LITERAL),
    ({"$cond": [{"$gt": ["$_id", 0]}, LITERAL, None]}, LITERAL),
    ({"$ifNull": ["$none", {"$literal": LITERAL}]}, LITERAL),
    ({"$switch": {"branches": [{"case": {"$eq": ["$_id", 5]}, "then": LITERAL}], "default": "$a"}}, LITERAL),
    ({"$let": {"vars": {"v": {"b": "$_id", "a": 1}}, "in": ["$$v", "$$v.b"]}}, [{"b": 5, "a": 1}, 5]),
    ({"$map": {"input": [LITERAL], "in": {"b": "$$this", "a": 1}}}, [{"b": LITERAL, "a": 1}]),
    ({"$filter": {"input": [LITERAL], "cond": True}}, [LITERAL]),
    ({"$reduce": {"input": [1, 2], "initialValue": LITERAL, "in": {"$mergeObjects": ["$$value", {"A": "$$this"}]}}}, {**LITERAL, "A": 2}),
    ({"$setUnion": [[LITERAL], "$none.x"]}, None),
    ({"$setUnion": [[LITERAL], [LITERAL]]}, [LITERAL]),
    ({"$concatArrays": [[LITERAL], "$a.x"]}, [LITERAL, *WHOLE["a"]["x"]]),
    ({"$sortArray": {"input": [LITERAL], "sortBy": {"b": 1}}}, [LITERAL]),
    ({"$max": [LITERAL, 1]}, LITERAL),
    ({"$first": [[LITERAL]]}, LITERAL),
    ({"$zip": {"inputs": [[LITERAL], ["$a"]]}}, [[LITERAL, WHOLE["a"]]]),
    ("$$ROOT", WHOLE),
    ("$$v", LITERAL),
]


def literals():
    """Expressions and literals, in every place and by every way of reading."""
    wrong = []

    def check(found, expected, what):
        found = [bson.decode(one.raw, CodecOptions(document_class=SON)) for one in found if one.get("_id") in (5, None, {"k": 5})]
        if len(found) != 1:
            wrong.append((what, len(found)))
        for name, value in found[0].items() if found else ():
            if encode({"v": value}) != encode({"v": expected.get(name)}):
                wrong.append((what, name, value, expected.get(name)))
        if found and list(found[0]) != list(expected):
            wrong.append((what, list(found[0]), list(expected)))

    variables = {"v": {"$literal": LITERAL}}
    # Fields in another order than jsonb's.
    named = {f"e{len(EXPRESSIONS) - at}": one for at, one in enumerate(EXPRESSIONS)}
    projection = {name: expression for name, (expression, _) in named.items()}
    values = {name: value for name, (_, value) in named.items()}
    expected = {"_id": 5, **values}
    for condition in [{"_id": 5}, {"count": 5}, {"count": {"$gt": 4, "$lt": 6}}, {"$expr": {"$eq": ["$count", 5]}}, {"_id": {"$lt": 290}}]:
        for options in ({}, {"sort": [("count", 1)]}, {"sort": [("zone", 1), ("_id", 1)]}, {"sort": [("_id", 1)], "batch_size": 2}):
            check(orders.find(condition, projection, let=variables, **options), expected, ("find", condition, options))
        first = [{"$match": condition}]
        for stage in (
            [{"$project": projection}],
            [{"$set": projection}, {"$project": dict.fromkeys(projection, 1)}],
            [{"$replaceWith": {"_id": "$_id", **projection}}],
            [{"$sort": {"_id": 1}}, {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {
                name: {"$last": {"v": expression}, "window": {"documents": ["current", "current"]}} for name, expression in projection.items()}}},
             {"$project": {name: f"${name}.v" for name in projection}}],
            [{"$unionWith": {"coll": "orders", "pipeline": [{"$match": {"_id": 5}}, {"$project": projection}]}}, {"$match": {"zone": None}}],
        ):
            check(orders.aggregate(first + stage, let=variables), expected, (condition, stage[-1]))
        made = {name: {"b": expression, "a": 1} for name, expression in projection.items()}
        for accumulator in ("$first", "$max", "$push", "$addToSet"):
            shape = (lambda value: [value]) if accumulator in ("$push", "$addToSet") else (lambda value: value)
            grouped = {"_id": "$_id", **{name: {accumulator: value} for name, value in made.items()}}
            # A missing value would be left out.
            wanted = {"_id": 5, **{name: shape({"b": value, "a": 1}) for name, value in values.items()}}
            check(orders.aggregate([*first, {"$group": grouped}], let=variables), wanted, (accumulator, condition))
        keys = {"_id": {"k": "$_id", **projection}}
        found = [one for one in orders.aggregate([*first, {"$group": keys}], let=variables) if one["_id"]["k"] == 5]
        if len(found) != 1 or bytes(found[0].raw) != encode({"_id": {"k": 5, **values}}):
            wrong.append(("key", condition, list(map(dict, found))))
    found = orders.find_one_and_update({"_id": 5}, {"$set": {"count": 5}}, projection, let=variables)
    check([found], expected, "findAndModify")
    facet = orders.aggregate([{"$match": {"_id": 5}}, {"$facet": {"f": [{"$project": projection}]}}, {"$replaceWith": {"$first": "$f"}}], let=variables)
    check(facet, expected, "facet")
    lookup = {"from": "orders", "let": {"k": "$_id", "v": {"$literal": LITERAL}}, "as": "l", "pipeline": [
        {"$match": {"$expr": {"$eq": ["$_id", "$$k"]}}}, {"$project": projection}]}
    check(orders.aggregate([{"$match": {"_id": 5}}, {"$lookup": lookup}, {"$replaceWith": {"$first": "$l"}}]), expected, "lookup")
    check(orders.aggregate([{"$match": {"_id": {"$lt": 9}}}, {"$lookup": lookup}, {"$replaceWith": {"$first": "$l"}}]), expected, "lookup of several")
    # A view has no variables.
    last = next(name for name, expression in projection.items() if expression == "$$v")
    bound = {name: expression for name, expression in projection.items() if name != last}
    expected = {name: value for name, value in expected.items() if name != last}
    for name, stages, projected in (("seen", [{"$project": bound}], None), ("whole", [], bound)):
        db.command("create", name, viewOn="orders", pipeline=stages)
        for condition in ({"_id": 5}, {"_id": {"$lt": 290}}):
            check(db[name].find(condition, projected), expected, (name, condition))
    # Where the order of fields decides.
    for condition in (
        {"$eq": [{"$objectToArray": {"$literal": LITERAL}}, FIELDS]},
        {"$eq": [{"$first": [{"$objectToArray": "$a"}]}, {"k": "y", "v": 1}]},
        {"$eq": [{"$objectToArray": "$$v"}, FIELDS]},
        {"$eq": [{"$objectToArray": {"$mergeObjects": ["$a", {"B": 1, "A": 2}]}}, {"$concatArrays": [{"$objectToArray": "$a"}, [{"k": "B", "v": 1}, {"k": "A", "v": 2}]]}]},
    ):
        for narrow in ({}, {"_id": 5}, {"count": 5}):
            filter = {**narrow, "$expr": condition}
            for found in (orders.find(filter, let=variables), orders.aggregate([{"$match": filter}], let=variables)):
                if len(list(found)) != (1 if narrow else 300):
                    wrong.append(filter)
    # Where the type of an integer decides.
    is_long = {"$expr": {"$eq": [{"$type": {"$add": ["$_id", Int64(1)]}}, "long"]}}
    for condition in (is_long, {"$or": [{"_id": 4}, is_long]}, {"$and": [{"a.y": Int64(1)}, {"$nor": [{"$expr": {"$ne": [{"$type": Int64(1)}, "long"]}}]}]}):
        filter = {"_id": 5, **condition}
        if len(list(orders.find(filter))) != 1 or orders.distinct("_id", filter) != [5] or orders.update_one(filter, {"$set": {"zone": "z"}}).matched_count != 1:
            wrong.append(filter)
    db.other.insert_one({"_id": 5})
    if db.other.delete_one({"_id": 5, **is_long}).deleted_count != 1:
        wrong.append("delete")
    # Positions and conditions may be 64-bit integers, too.
    found = orders.find_one({"_id": 5}, {"_id": Int64(0), "zone": Int64(1), "a.list": {"$slice": [Int64(1), Int64(1)]}})
    if bytes(found.raw) != encode({"zone": "z", "a": {"list": [2]}}):
        wrong.append(found)
    db.other.insert_one({"_id": 6, "b": [1, {"d": [Int64(7), 8]}]})
    found = db.other.find_one({"_id": 6}, {"_id": 0, "b": {"$elemMatch": {"d": {"$size": Int64(2)}}}})
    if bytes(found.raw) != encode({"b": [{"d": [Int64(7), 8]}]}):
        wrong.append(found)
    assert not wrong, "\n".join(map(str, [len(wrong), *wrong]))


def stages():
    def last(stages, expected):
        *_, found = orders.aggregate([{"$match": {"_id": {"$lte": 5}}}, {"$sort": {"_id": 1}}, *stages])
        same(found, expected)

    whole = DOCUMENTS[5]
    last([], whole)
    last([{"$skip": 1}, {"$limit": 50}], whole)
    last([{"$addFields": {"zone": "y", "z": 1, "A": 2}}], {**whole, "zone": "y", "z": 1, "A": 2})
    last([{"$unset": ["b", "a.y"]}], {"_id": 5, "zone": "z", "a": {"x": whole["a"]["x"], "list": whole["a"]["list"]}, "count": 5})
    last([{"$unwind": "$a.list"}], {**whole, "a": {**whole["a"], "list": 2}})
    last([{"$replaceRoot": {"newRoot": "$a"}}], whole["a"])
    last([{"$replaceRoot": {"newRoot": {"z": 1, "b": "$b", "a": "$a"}}}], {"z": 1, "b": Int64(5), "a": whole["a"]})
    last([{"$group": {"_id": "$zone", "n": {"$sum": 1}, "a": {"$last": "$a"}}}], {"_id": "z", "n": 6, "a": whole["a"]})
    last([{"$lookup": {"from": "orders", "localField": "_id", "foreignField": "_id", "as": "l"}}], {**whole, "l": [whole]})
    last([{"$set": {"whole": "$$ROOT"}}], {**whole, "whole": whole})
    # The first documents are read by the command, or none, and the others by the commit.
    for batch in (0, 2):
        joined = orders.aggregate([{"$sort": {"_id": 1}}, {"$lookup": {"from": "orders", "localField": "_id", "foreignField": "_id", "as": "l"}}], batchSize=batch)
        for found, whole in zip(joined, DOCUMENTS, strict=True):
            same(found, {**whole, "l": [whole]})
        grouped = orders.aggregate([{"$group": {"_id": {"z": "$zone", "c": "$count"}, "n": {"$sum": 1}}}, {"$sort": {"_id.c": 1}}], batchSize=batch)
        for count, found in enumerate(grouped):
            same(found, {"_id": {"z": "z", "c": count}, "n": 1})


def results():
    """The types of what expressions, accumulators and updates compute."""
    def grouped(accumulator, expected):
        for group in (None, "$zone", "$count"):
            *_, found = orders.aggregate([{"$match": {"count": {"$lt": 2}}}, {"$group": {"_id": group, "n": accumulator}}, {"$sort": {"_id": 1}}, {"$limit": 1}])
            value = bson.decode(found.raw)["n"]
            assert isinstance(value, Int64) == expected, (group, accumulator, value)

    for accumulator, expected in [
        ({"$sum": "$b"}, True), ({"$sum": "$count"}, False), ({"$sum": 1}, False), ({"$sum": Int64(1)}, True), ({"$max": "$b"}, True),
        ({"$sum": {"$add": ["$count", "$b"]}}, True), ({"$sum": {"$toLong": "$count"}}, True), ({"$first": "$b"}, True), ({"$count": {}}, False),
    ]:
        grouped(accumulator, expected)
    # An index that has the field.
    db.orders.create_index([("b", 1)])
    *_, found = orders.aggregate([{"$match": {"b": {"$gte": 1, "$lt": 4}}}, {"$group": {"_id": "$b", "n": {"$sum": "$b"}}}, {"$sort": {"_id": 1}}])
    same(found, {"_id": Int64(3), "n": Int64(3)})
    found = orders.find_one({"_id": 5}, {"_id": 0, "n": {"$add": ["$count", 1]}, "l": {"$toLong": "$count"}, "m": {"$multiply": ["$b", 2]}})
    same(found, {"n": 6, "l": Int64(5), "m": Int64(10)})
    *_, found = orders.aggregate([{"$match": {"_id": 5}}, {"$project": {"_id": 0, "n": {"$add": ["$count", Int64(1)]}, "v": "$$v"}}], let={"v": Int64(3)})
    same(found, {"n": Int64(6), "v": Int64(3)})
    *_, found = orders.aggregate([{"$match": {"_id": 5}}, {"$count": "n"}])
    same(found, {"n": 1})
    assert orders.count_documents({"b": {"$type": "long"}, "count": {"$type": "int"}}) == 300
    assert orders.count_documents({"b": {"$type": "int"}}) == 0
    updated([{"$set": {"n": {"$add": ["$b", 1]}, "m": {"$add": ["$count", Int64(1)]}}}], {**DOCUMENTS[1], "n": Int64(2), "m": Int64(2)})
    updated({"$inc": {"m": 2**40, "count": 2**31 - 1}}, {**DOCUMENTS[1], "count": Int64(2**31), "n": Int64(2), "m": Int64(2**40 + 2)})
    updated({"$inc": {"m": -(2**40), "count": -(2**31 - 1)}}, {**DOCUMENTS[1], "count": Int64(1), "n": Int64(2), "m": Int64(2)})
    orders.replace_one({"_id": 1}, DOCUMENTS[1])
    made = db.create_collection("typed", validator={"$jsonSchema": {"properties": {"n": {"bsonType": "long"}}}})
    made.insert_one({"n": Int64(1)})
    try:
        made.insert_one({"n": 1})
        raise AssertionError("an int is no long")
    except pymongo.errors.WriteError as error:
        assert error.code == 121


def sinks():
    orders.aggregate([{"$match": {"_id": {"$lt": 50}}}, {"$out": "copies"}])
    for found, expected in zip(db.copies.find().sort("_id", 1), DOCUMENTS, strict=False):
        same(found, expected)
    # Documents that do not exist, and then those that do.
    for matched in ("merge", "merge", "replace", [{"$replaceWith": "$$new"}]):
        orders.aggregate([{"$merge": {"into": "merged", "whenMatched": matched}}])
        for found, expected in zip(db.merged.find().sort("_id", 1), DOCUMENTS, strict=True):
            same(found, expected)


if len(sys.argv) == 3:
    inserts()
    updates()
    projections()
    literals()
    stages()
    results()
    sinks()
documents()
print("done")
