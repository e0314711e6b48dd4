"""What a client is told that finds one document: refused.py PORT USER PASSWORD; no user: it does not log in."""

import sys

import pymongo
from pymongo.errors import OperationFailure

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]
login = {"username": user, "password": password} if user else {}
try:
    print("found", pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=20000, **login).test.things.find_one())
except OperationFailure as error:
    print(error.code, error.details["errmsg"])
