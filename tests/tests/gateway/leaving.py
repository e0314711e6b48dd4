"""A client that leaves while its command runs: leaving.py PORT USER PASSWORD."""

import sys

import pymongo
from pymongo.errors import NetworkTimeout

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]
client = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, socketTimeoutMS=1500, retryReads=False)
# It takes minutes.
inner = {"$size": {"$map": {"input": {"$range": [0, 10_000]}, "in": {"$add": ["$$this", 1]}}}}
slow = {"$size": {"$map": {"input": {"$range": [0, 100_000]}, "in": inner}}}
try:
    client.test.aggregate([{"$documents": [{"n": 1}]}, {"$project": {"slow": slow}}])
    raise AssertionError("it has an answer")
except NetworkTimeout:
    print("done")
