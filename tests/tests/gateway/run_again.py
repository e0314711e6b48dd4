"""A transaction whose session ends: run_again.py PORT USER PASSWORD SECONDS; a line of stdin says when."""

import sys
import time

import pymongo

port, user, password, seconds = int(sys.argv[1]), *sys.argv[2:4], float(sys.argv[4])
things = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=60000).test.things
calls = []


def work(session):
    things.insert_one({"seconds": seconds}, session=session)
    calls.append(1)
    if len(calls) == 1:
        print("in a transaction", flush=True)
        sys.stdin.readline()
        time.sleep(seconds)
    things.update_one({"seconds": seconds}, {"$inc": {"n": 1}}, session=session)


with things.database.client.start_session() as session:
    session.with_transaction(work)
found = list(things.find({"seconds": seconds}))
assert len(calls) == 2 and [each["n"] for each in found] == [1], (calls, found)
print("done")
