"""Transactions that nobody ends: abandoned.py PORT USER PASSWORD; the gateway aborts one after two seconds."""

import sys
import threading
import time

import pymongo
from pymongo.errors import OperationFailure

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]
client = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=60000)
things = client.test.things


def failure(call):
    try:
        call()
    except OperationFailure as error:
        return error.code, error.details.get("errorLabels", [])
    raise AssertionError("it succeeds")


with client.start_session() as session:
    session.start_transaction()
    things.insert_one({"_id": "idle"}, session=session)
    # Another writer of the document waits for the end.
    things.insert_one({"_id": "idle"})
    assert failure(session.commit_transaction) == (251, ["TransientTransactionError"])
# Also within a statement.
inner = {"$size": {"$map": {"input": {"$range": [0, 10_000]}, "in": {"$add": ["$$this", 1]}}}}
slow = {"$size": {"$map": {"input": {"$range": [0, 100_000]}, "in": inner}}}
with client.start_session() as session:
    session.start_transaction()
    things.insert_one({"_id": "lost"}, session=session)
    assert failure(lambda: list(things.aggregate([{"$project": {"slow": slow}}], session=session))) == (251, ["TransientTransactionError"])
# A statement of another connection can end it.
with client.start_session() as session:
    session.start_transaction()
    things.insert_one({"_id": "lost"}, session=session)
    found = []
    running = threading.Thread(target=lambda: found.append(failure(lambda: list(things.aggregate([{"$project": {"slow": slow}}], session=session)))))
    running.start()
    time.sleep(0.5)
    client.admin.command("killSessions", [session.session_id])
    running.join()
    assert found == [(251, ["TransientTransactionError"])], found
assert things.count_documents({}) == 1
# The last one is left to the end of this process, without goodbye.
session = client.start_session()
session.start_transaction()
things.insert_one({"_id": "lost"}, session=session)
print("done", flush=True)
import os
os._exit(0)
