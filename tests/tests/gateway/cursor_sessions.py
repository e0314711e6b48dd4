"""Cursors and the sessions that have them: cursor_sessions.py PORT USER PASSWORD OTHER PASSWORD. A command waits 5 s for one
of at most 8 sessions."""

import sys
import threading
import time

import bson
import pymongo
from raw import Raw

port, user, password, other, its_password = int(sys.argv[1]), *sys.argv[2:6]
DATABASE = {"$db": "test"}

# 10^12 documents, one at a time.
MANY = {"$project": {"n": {"$range": [0, 1_000_000]}}}
ENDLESS = [MANY, {"$unwind": "$n"}, MANY, {"$unwind": "$n"}, {"$count": "n"}]


def opened(raw, **options):
    reply = raw.message(find="things", batchSize=2, **options, **DATABASE)
    assert reply["ok"] == 1.0 and reply["cursor"]["id"], reply
    return reply["cursor"]["id"]


def read_on(raw, cursor):
    began = time.monotonic()
    reply = raw.message(getMore=bson.Int64(cursor), collection="things", batchSize=2, **DATABASE)
    return reply.get("code"), time.monotonic() - began


with pymongo.MongoClient("127.0.0.1", port, username=user, password=password) as it:
    it.test.things.insert_many([{"_id": n} for n in range(1000)])

connections = [Raw(port).login(user, password) for _ in range(4)]
reader, *others = connections

# Others' long commands leave the session alone that has the cursor, as long as other sessions are idle.
cursor = opened(reader)
threads = []
for raw in others:
    command = {"aggregate": "things", "pipeline": ENDLESS, "cursor": {}, "maxTimeMS": 8000, **DATABASE}
    threads.append(threading.Thread(target=lambda raw=raw, command=command: raw.message(**command)))
    threads[-1].start()
    time.sleep(0.3)
    code, seconds = read_on(reader, cursor)
    assert code is None and seconds < 2, (code, seconds)
for thread in threads:
    thread.join()
assert reader.message(killCursors="things", cursors=[bson.Int64(cursor)], **DATABASE)["cursorsKilled"] == [cursor]

# Cursors are spread over the sessions: more than a session may have, and all of them are read to their second batch.
cursors = [opened(connections[number % 4]) for number in range(380)]
for number, cursor in enumerate(cursors):
    code, _ = read_on(connections[number % 3], cursor)
    assert code is None, (number, code)
for cursor in cursors:
    reader.message(killCursors="things", cursors=[bson.Int64(cursor)], **DATABASE)

# More cursors than its sessions may have: the driver logs in for further sessions while there is room.
with pymongo.MongoClient("127.0.0.1", port, username=user, password=password) as it:
    open_ones = [it.test.things.find(sort=[("_id", 1)], batch_size=2) for _ in range(620)]
    for each in open_ones:
        next(each)
    for number, each in enumerate(open_ones):
        assert [each.next()["_id"] for _ in range(3)] == [1, 2, 3], number
        each.close()

# Another role's logins close sessions without cursors.
cursor = opened(reader)
strangers = [pymongo.MongoClient("127.0.0.1", port, username=other, password=its_password) for _ in range(8)]
for stranger in strangers:
    stranger.admin.command("ping", comment=1)
code, _ = read_on(reader, cursor)
assert code is None, code
print("done")
