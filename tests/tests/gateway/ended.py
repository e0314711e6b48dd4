"""Sessions that are ended while they are in use: ended.py PORT USER PASSWORD."""

import os
import random
import struct
import sys
import time

import bson
from raw import Raw

MORE_TO_COME = 2
port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def connect():
    return Raw(port).login(user, password)


def session():
    return {"id": bson.Binary(os.urandom(16), 4)}


def of(lsid, start=False):
    return {"lsid": lsid, "txnNumber": bson.Int64(1), "autocommit": False, **({"startTransaction": True} if start else {}), "$db": "test"}


def leave_with(raw, **command):
    """Sends a command without waiting for a reply, and disconnects."""
    raw.send(2013, struct.pack("<I", MORE_TO_COME) + b"\0" + bson.encode(command))
    raw.socket.close()


# Cursors that are closed within a transaction are not counted any more.
client = connect()
client.message(insert="things", documents=[{"_id": n} for n in range(3)], **{"$db": "test"})
mine = session()
for n in range(1_100):
    found = client.message(find="things", batchSize=2, **of(mine, n == 0))
    assert found["ok"] == 1, (n, found)
    killed = client.message(killCursors="things", cursors=[found["cursor"]["id"]], **of(mine))
    assert killed["cursorsKilled"] == [found["cursor"]["id"]], killed
# Those that it does not have are another one's.
others = connect()
elsewhere = others.message(find="things", batchSize=2, **{"$db": "test"})["cursor"]["id"]
assert client.message(killCursors="things", cursors=[elsewhere], **of(mine))["cursorsKilled"] == []
assert others.message(getMore=elsewhere, collection="things", **{"$db": "test"})["ok"] == 1
# Commands about sessions are no part of a transaction.
refused = client.message(killSessions=[mine], **of(mine))
assert refused["code"] == 263, refused

# A client that leaves at once has ended all the transactions that it has named.
sessions = [session() for _ in range(5)]
clients = [connect() for _ in sessions]
for n, (raw, lsid) in enumerate(zip(clients, sessions)):
    assert raw.message(insert="things", documents=[{"_id": 10 + n}], **of(lsid, True))["ok"] == 1
leave_with(connect(), endSessions=sessions, apiVersion="1", apiStrict=True, maxTimeMS=60_000, **{"$db": "admin"})
time.sleep(1)
for raw, lsid in zip(clients, sessions):
    assert raw.message(commitTransaction=1, **{**of(lsid), "$db": "admin"})["code"] == 251
# Also while a statement ends.
killers = [connect() for _ in range(40)]
for killer in killers:
    lsid = session()
    began = time.monotonic()
    found = client.message(find="things", limit=1, singleBatch=True, **of(lsid, True))
    assert found["ok"] == 1, found
    client.send(2013, struct.pack("<I", 0) + b"\0" + bson.encode({"find": "things", "limit": 1, "singleBatch": True, **of(lsid)}))
    time.sleep((time.monotonic() - began) * random.random())
    leave_with(killer, endSessions=[lsid], **{"$db": "admin"})
    client.receive()

# The token of a transaction that another server may have numbered.
token = {"xid": "4000000000", "timeline": "000000FF", "system": "1"}
lost = client.message(commitTransaction=1, recoveryToken=token, **{**of(session()), "$db": "admin"})
assert lost["code"] == 251 and "errorLabels" not in lost, lost
print("done")
