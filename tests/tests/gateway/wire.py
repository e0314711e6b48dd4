"""The wire protocol beyond what drivers usually send: wire.py PORT USER PASSWORD OTHER_PORT. The other port is that of a second gateway."""

import struct
import sys
import uuid

import bson
import pymongo
from bson.binary import Binary
from pymongo.cursor import CursorType
from pymongo.errors import OperationFailure
from raw import Raw

port, user, password, other = int(sys.argv[1]), *sys.argv[2:5]
client = pymongo.MongoClient("127.0.0.1", port, username=user, password=password)
here, there = (Raw(at).login(user, password) for at in (port, int(other)))
EXHAUST_ALLOWED, MORE_TO_COME = 1 << 16, 1 << 1


def run(at, **command):
    reply = at.message(**command, **{"$db": "here"})
    return reply if reply["ok"] == 1.0 else (reply["code"], reply.get("errorLabels"))


def exhausted(at, flags, **command):
    """The replies to one request, which come until one has no flag."""
    at.send(2013, struct.pack("<I", flags) + b"\0" + bson.encode({**command, "$db": "here"}))
    replies, expected = [], 7
    while True:
        length, number, reply_to, opcode = struct.unpack("<iiii", at.take(16))
        body = at.take(length - 16)
        assert (opcode, reply_to) == (2013, expected), (opcode, reply_to, expected)
        replies.append(bson.decode(body[5:]))
        (flags,) = struct.unpack("<I", body[:4])
        if flags == 0:
            return replies
        assert flags == MORE_TO_COME
        expected = number


def exhaust():
    client.here.many.insert_many([{"_id": n} for n in range(1000)])
    found = [document["_id"] for document in client.here.many.find(cursor_type=CursorType.EXHAUST, batch_size=99, sort=[("_id", 1)])]
    assert found == list(range(1000))
    # One request, and ten replies.
    cursor = run(here, find="many", batchSize=99)["cursor"]["id"]
    more = {"getMore": bson.Int64(cursor), "collection": "many", "batchSize": 99}
    replies = exhausted(here, EXHAUST_ALLOWED, **more)
    sizes = [len(reply["cursor"]["nextBatch"]) for reply in replies]
    assert sizes == [99] * 9 + [10], sizes
    # An error ends the replies, and so does a command that cannot have several.
    (failed,) = exhausted(here, EXHAUST_ALLOWED, **more)
    assert failed["code"] == 43, failed
    (first,) = exhausted(here, EXHAUST_ALLOWED, find="many", batchSize=99)
    assert len(first["cursor"]["firstBatch"]) == 99
    # Without the flag there is one reply.
    (reply,) = exhausted(here, 0, **{**more, "getMore": bson.Int64(first["cursor"]["id"])})
    assert len(reply["cursor"]["nextBatch"]) == 99
    # A client that leaves in the middle ends its cursor's replies only.
    leaving = Raw(port).login(user, password)
    leaving.send(2013, struct.pack("<I", EXHAUST_ALLOWED) + b"\0" + bson.encode({**more, "getMore": bson.Int64(first["cursor"]["id"]), "batchSize": 1, "$db": "here"}))
    leaving.take(16)
    leaving.socket.close()
    assert run(here, ping=1)["ok"] == 1.0


def recovery():
    client.here.create_collection("things")

    def begin(session):
        part = {"lsid": session, "txnNumber": bson.Int64(1), "autocommit": False}
        read = run(here, find="things", startTransaction=True, **part)
        assert read["recoveryToken"] == {}, read
        written = run(here, insert="things", documents=[{"session": str(session)}], **part)
        token = written["recoveryToken"]
        assert token["xid"].isdigit(), written
        assert run(here, find="things", **part)["recoveryToken"] == token
        return token, part

    def commit(at, part, **token):
        return run(at, commitTransaction=1, **part, **token)

    def session():
        return {"id": Binary(uuid.uuid4().bytes, 4)}

    # Another gateway knows what became of the transaction.
    token, part = begin(session())
    assert commit(here, part, recoveryToken=token)["ok"] == 1.0
    assert commit(there, part, recoveryToken=token)["ok"] == 1.0
    assert commit(there, part) == (251, None), "without a token it does not"
    token, part = begin(session())
    assert run(here, abortTransaction=1, recoveryToken=token, **part)["ok"] == 1.0
    assert commit(there, part, recoveryToken=token) == (251, ["TransientTransactionError"])
    # As long as the transaction is open nobody knows.
    token, part = begin(session())
    assert commit(there, part, recoveryToken=token) == (50, ["UnknownTransactionCommitResult"])
    assert commit(here, part, recoveryToken=token)["ok"] == 1.0
    assert commit(there, part, recoveryToken=token)["ok"] == 1.0
    # Tokens of others.
    for wrong in ({}, {"recoveryShardId": "s0"}, {**token, "system": "1"}, {**token, "timeline": "00000009"}, {**token, "xid": "x"}):
        assert commit(there, part, recoveryToken=wrong) == (251, None), wrong
    assert client.here.things.count_documents({}) == 2


def snapshots():
    time = bson.Timestamp(1, 1)
    for command in ({"find": "many"}, {"aggregate": "many", "pipeline": [], "cursor": {}}, {"distinct": "many", "key": "_id"}):
        assert run(here, **command, readConcern={"level": "snapshot"})["ok"] == 1.0
        assert run(here, **command, readConcern={"level": "snapshot", "atClusterTime": time}) == (72, None), command


def certificates():
    mechanism = "MONGODB-X509"
    for command in ({"saslStart": 1, "mechanism": mechanism, "payload": b""}, {"authenticate": 1, "mechanism": mechanism}):
        reply = Raw(port).message(**command, **{"$db": "$external"})
        assert reply["code"] == 334 and mechanism in reply["errmsg"], reply
    try:
        pymongo.MongoClient("127.0.0.1", port, username="CN=ann", authMechanism=mechanism).here.things.find_one()
        raise AssertionError("it succeeds")
    except OperationFailure as error:
        assert error.code == 334, error


exhaust()
recovery()
snapshots()
certificates()
print("done")
