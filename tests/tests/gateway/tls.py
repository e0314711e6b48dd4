"""TLS from client to gateway: tls.py PORT USER PASSWORD AUTHORITY."""

import sys

import pymongo
from pymongo.errors import ServerSelectionTimeoutError

port, user, password, authority = int(sys.argv[1]), *sys.argv[2:5]
login = {"username": user, "password": password}
with pymongo.MongoClient("127.0.0.1", port, tls=True, tlsCAFile=authority, serverSelectionTimeoutMS=20000, **login) as it:
    it.test.things.insert_one({"_id": 1, "text": "x" * 1_000_000})
    assert len(it.test.things.find_one()["text"]) == 1_000_000
for options in ({}, {"tls": True}):
    with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=1000, **login, **options) as it:
        try:
            it.admin.command("ping")
            raise AssertionError("it is connected")
        except ServerSelectionTimeoutError:
            pass
print("done")
