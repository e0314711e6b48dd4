"""A role that runs as many long commands as it may: hog.py PORT USER PASSWORD OTHER PASSWORD."""

import sys
import threading

import pymongo
from pymongo.errors import PyMongoError

port, user, password, other, its_password = int(sys.argv[1]), *sys.argv[2:6]


def client(name, secret):
    return pymongo.MongoClient("127.0.0.1", port, username=name, password=secret, serverSelectionTimeoutMS=20000)


with client(user, password) as it:
    it.test.things.insert_one({"_id": 1})
# 10^12 documents, one at a time.
many = {"$project": {"n": {"$range": [0, 1_000_000]}}}
endless = [many, {"$unwind": "$n"}, many, {"$unwind": "$n"}, {"$count": "n"}]
hogs = [client(user, password) for _ in range(20)]


def work(hog):
    try:
        hog.test.things.aggregate(endless)
        raise AssertionError("it ends")
    except PyMongoError:
        pass


threads = [threading.Thread(target=work, args=(hog,), daemon=True) for hog in hogs]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.readline()
# Others log in, and work, as often as they like.
for _ in range(20):
    with client(other, its_password) as it:
        it.test.other.insert_one({})
        assert it.test.other.find_one()
print("done", flush=True)
sys.stdin.readline()
