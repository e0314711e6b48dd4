"""One client while its router restarts: restart.py PORT USER PASSWORD; a line of stdin says when."""

import sys

import pymongo
from pymongo.errors import PyMongoError

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]
things = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=60000).test.things
things.insert_one({"_id": "before"})
print("ready", flush=True)
sys.stdin.readline()
# The sessions are gone, and with them the login: a driver logs in again on a new connection.
for attempt in range(20):
    try:
        assert things.find_one({"_id": "before"})
        break
    except PyMongoError as error:
        print(attempt, error, flush=True)
else:
    raise AssertionError("the client does not come back")
things.insert_one({"_id": "after"})
print("done")
