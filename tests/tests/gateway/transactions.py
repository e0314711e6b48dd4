"""Sessions and transactions: transactions.py PORT USER PASSWORD OTHER OTHERS_PASSWORD. Both may write collections of their own."""

import sys
import threading
import uuid

import bson
import pymongo
from bson.binary import Binary
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern
from raw import Raw

port, user, password, other, its_password = int(sys.argv[1]), *sys.argv[2:6]


def connect(name=user, secret=password, **options):
    return pymongo.MongoClient("127.0.0.1", port, username=name, password=secret, serverSelectionTimeoutMS=60000, **options)


def plain(name=user, secret=password):
    """A connection without a driver, which would send sessions of its own."""
    return Raw(port).login(name, secret)


client = connect()
one_connection = plain()
things = client.test.things
majority = WriteConcern("majority")


def failure(call):
    try:
        call()
    except OperationFailure as error:
        return error.code, sorted(error.details.get("errorLabels", []))
    raise AssertionError("it succeeds")


def lsid():
    return {"id": Binary(uuid.uuid4().bytes, 4)}


def part(session, number, **more):
    return {"lsid": session, "txnNumber": bson.Int64(number), "autocommit": False, **more}


def run(command, value, at=one_connection, database="test", **more):
    reply = at.message(**{command: value, **more, "$db": database})
    if reply["ok"] != 1.0:
        raise OperationFailure(reply["errmsg"], reply["code"], reply)
    return reply


def insert(session, number, id, start=True, at=one_connection, **more):
    start = {"startTransaction": True} if start else {}
    return run("insert", "things", at, documents=[{"_id": id}], **part(session, number, **start, **more))


def end(command, session, number, at=one_connection, **more):
    return run(command, 1, at, "admin", **part(session, number, **more))


def ids(**filter):
    return sorted(each["_id"] for each in things.find(filter))


def clean():
    things.delete_many({})


def sessions_of_a_driver():
    assert client.admin.command("hello")["logicalSessionTimeoutMinutes"] == 30
    with client.start_session() as session, session.start_transaction(write_concern=majority):
        things.insert_many([{"_id": n} for n in range(10)], session=session)
        assert things.count_documents({}, session=session) == 10
        things.update_many({"_id": {"$lt": 5}}, {"$set": {"low": True}}, session=session)
        things.delete_one({"_id": 9}, session=session)
        # Outside nothing is seen, although the client has had one connection only.
        assert things.find_one() is None
        assert things.insert_one({"_id": "outside"}).acknowledged
    assert ids(low=True) == [0, 1, 2, 3, 4] and things.count_documents({}) == 10
    # What fails in the block aborts.
    try:
        with client.start_session() as session, session.start_transaction():
            things.insert_one({"_id": "lost"}, session=session)
            raise KeyError
    except KeyError:
        pass
    assert things.find_one({"_id": "lost"}) is None
    # An error of the server aborts, too.
    with client.start_session() as session:
        session.start_transaction()
        things.insert_one({"_id": "lost"}, session=session)
        try:
            things.insert_one({"_id": 1}, session=session)
            raise AssertionError("a duplicate is inserted")
        except DuplicateKeyError:
            pass
        assert failure(lambda: things.find_one(session=session)) == (251, ["TransientTransactionError"])
        assert failure(session.commit_transaction) == (251, ["TransientTransactionError"])
    assert things.find_one({"_id": "lost"}) is None
    # One snapshot.
    with client.start_session() as session:
        session.start_transaction(read_concern=ReadConcern("snapshot"))
        assert things.count_documents({}, session=session) == 10
        things.insert_one({"_id": "later"})
        assert things.count_documents({}, session=session) == 10
        session.commit_transaction()
        session.commit_transaction()
    clean()


def conflicts():
    things.insert_one({"_id": "counter", "n": 0})
    with client.start_session() as one, client.start_session() as two:
        one.start_transaction()
        two.start_transaction()
        try:
            assert things.find_one(session=two)["n"] == 0
        except PyMongoError as error:
            # Its login brings another session.
            assert error.has_error_label("TransientTransactionError"), error
            two.abort_transaction()
            two.start_transaction()
            assert things.find_one(session=two)["n"] == 0
        things.update_one({}, {"$inc": {"n": 1}}, session=one)
        one.commit_transaction()
        found = failure(lambda: things.update_one({}, {"$inc": {"n": 1}}, session=two))
        assert found == (112, ["TransientTransactionError"]), found

    def increment(session):
        n = things.find_one(session=session)["n"]
        things.update_one({}, {"$set": {"n": n + 1}}, session=session)

    failed = []

    def work():
        try:
            with client.start_session() as session:
                for _ in range(5):
                    session.with_transaction(increment)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert things.find_one()["n"] == 31, things.find_one()
    clean()


def cursors():
    things.insert_many([{"_id": n} for n in range(500)])
    with client.start_session() as session, session.start_transaction():
        things.insert_one({"_id": 500}, session=session)
        assert [each["_id"] for each in things.find(session=session).sort("_id").batch_size(50)] == list(range(501))
        things.find(session=session).batch_size(2).next()
    one = lsid()
    within = run("find", "things", batchSize=2, **part(one, 1, startTransaction=True))["cursor"]["id"]
    assert within != 0
    assert failure(lambda: run("getMore", within, collection="things")) == (50740, [])
    assert len(run("getMore", within, collection="things", batchSize=3, **part(one, 1))["cursor"]["nextBatch"]) == 3
    assert run("killCursors", "things", cursors=[within])["cursorsNotFound"] == [within]
    assert run("killCursors", "things", cursors=[within], **part(one, 1))["cursorsKilled"] == [within]
    within = run("find", "things", batchSize=2, **part(one, 1))["cursor"]["id"]
    # One that is open at the end is closed.
    end("commitTransaction", one, 1)
    assert failure(lambda: run("getMore", within, collection="things")) == (43, [])
    outside = run("find", "things", batchSize=2)["cursor"]["id"]
    run("find", "things", **part(one, 2, startTransaction=True))
    assert failure(lambda: run("getMore", outside, collection="things", **part(one, 2))) == (50739, [])
    assert failure(lambda: end("commitTransaction", one, 2)) == (251, ["TransientTransactionError"])
    assert len(run("getMore", outside, collection="things", batchSize=3)["cursor"]["nextBatch"]) == 3
    clean()


def rules():
    one = lsid()
    second = plain()
    insert(one, 5, "a")
    # Any connection of the role goes on.
    insert(one, 5, "b", start=False, at=second)
    assert failure(lambda: insert(one, 5, "c")) == (117, [])
    assert failure(lambda: insert(one, 4, "c")) == (225, [])
    assert failure(lambda: insert(one, 4, "c", start=False)) == (225, [])
    assert failure(lambda: insert(one, 6, "c", start=False)) == (251, ["TransientTransactionError"])
    # What is not allowed does not abort.
    for command, value in (("count", "things"), ("drop", "things"), ("explain", {"find": "things"}), ("listIndexes", "things")):
        found = failure(lambda: run(command, value, **part(one, 5)))
        assert found == (263, []), (command, found)
    found = failure(lambda: run("aggregate", "things", pipeline=[{"$out": "x"}], cursor={}, **part(one, 5)))
    assert found == (263, []), found
    for more in ({"writeConcern": {"w": 1}}, {"readConcern": {"level": "local"}}):
        assert failure(lambda: insert(one, 5, "c", start=False, **more)) == (72, [])
    end("commitTransaction", one, 5, at=second)
    # Again, by another connection.
    for at in (one_connection, second):
        assert end("commitTransaction", one, 5, at=at, writeConcern={"w": "majority"})["ok"] == 1.0
    assert failure(lambda: end("abortTransaction", one, 5)) == (256, [])
    assert failure(lambda: insert(one, 5, "c", start=False)) == (256, [])
    assert ids() == ["a", "b"]
    # A new transaction aborts the one before, and so does a write that may be sent again.
    insert(one, 6, "lost")
    insert(one, 7, "d")
    assert end("abortTransaction", one, 7)["ok"] == 1.0
    assert failure(lambda: end("abortTransaction", one, 7))[0] == 251
    assert failure(lambda: end("commitTransaction", one, 7)) == (251, ["TransientTransactionError"])
    insert(one, 8, "lost")
    run("insert", "things", documents=[{"_id": "e"}], lsid=one, txnNumber=bson.Int64(9))
    assert failure(lambda: end("commitTransaction", one, 8)) == (251, ["TransientTransactionError"])
    assert ids() == ["a", "b", "e"]
    # Nobody knows what became of a transaction that was never heard of.
    assert failure(lambda: end("commitTransaction", lsid(), 1)) == (251, [])
    assert failure(lambda: run("commitTransaction", 1, database="admin")) == (125, [])
    # Another user's session of this name is another one.
    insert(one, 10, "f")
    stranger = plain(other, its_password)
    assert failure(lambda: end("commitTransaction", one, 10, at=stranger)) == (251, [])
    assert failure(lambda: end("abortTransaction", one, 10, at=stranger))[0] == 251
    run("insert", "other", stranger, documents=[{"_id": "mine"}], **part(one, 10, startTransaction=True))
    for command in ("endSessions", "killSessions"):
        run(command, [one], stranger, "admin")
    run("killAllSessions", [], stranger, "admin")
    assert failure(lambda: run("killAllSessions", [{"user": user, "db": "admin"}], stranger, "admin")) == (13, [])
    end("commitTransaction", one, 10)
    assert ids() == ["a", "b", "e", "f"]
    assert run("find", "other", stranger)["cursor"]["firstBatch"] == []
    clean()


def ends():
    started = run("startSession", 1, database="admin")
    assert started["timeoutMinutes"] == 30 and len(started["id"]["id"]) == 16
    for command, wrap in (
        ("endSessions", lambda one: [one]),
        ("killSessions", lambda one: [one, None]),
        ("killSessions", lambda one: []),
        ("killAllSessions", lambda one: []),
        ("killAllSessionsByPattern", lambda one: [{}]),
        ("killAllSessionsByPattern", lambda one: [{"lsid": one}]),
    ):
        one = lsid()
        insert(one, 1, "lost")
        run("refreshSessions", [one], database="admin")
        # A router refuses fields before anything is ended, and the transaction goes on.
        assert failure(lambda: run(command, wrap(one), database="admin", maxTimeMS=1.5)) == (9, [])
        assert failure(lambda: run(command, wrap(one), database="admin", writeConcern={"w": 1})) == (72, [])
        insert(one, 1, "still", start=False)
        run(command, wrap(one), database="admin", comment="x")
        assert failure(lambda: end("commitTransaction", one, 1)) == (251, [])
    # A driver that is closed ends its sessions.
    leaving = connect()
    session = leaving.start_session()
    session.start_transaction()
    leaving.test.things.insert_one({"_id": "lost"}, session=session)
    leaving.close()
    assert ids() == []


for step in (sessions_of_a_driver, conflicts, cursors, rules, ends):
    print(step.__name__, flush=True)
    step()
print("done")
