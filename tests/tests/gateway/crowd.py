"""Many connections of one address: crowd.py PORT USER PASSWORD. The gateway takes 80, of which 40 have no login."""

import socket
import struct
import sys

import bson
import pymongo

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def connect(address):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(address, 0))
    body = struct.pack("<I", 0) + b"\0" + bson.encode({"hello": 1, "$db": "admin"})
    connection.sendall(struct.pack("<iiii", 16 + len(body), 7, 0, 2013) + body)
    try:
        return connection if connection.recv(4096) else None
    except ConnectionResetError:
        return None


crowd = [connect("127.0.0.2") for _ in range(100)]
assert len([one for one in crowd if one]) == 20, len([one for one in crowd if one])
with pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=20000) as it:
    assert it.test.things.find_one() is None
print("done")
