"""Bytes that no driver sends: hostile.py PORT USER PASSWORD SEED."""

import random
import struct
import sys
import zlib

import bson
import pymongo
from raw import Raw

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]
seed = int(sys.argv[4])
chance = random.Random(seed)
print("seed", seed)


def refused(opcode, body, length=None):
    raw = Raw(port)
    raw.send(opcode, body, length)
    assert raw.is_closed(), (opcode, body[:40])


empty = bson.encode({})
ping = struct.pack("<I", 0) + b"\0" + bson.encode({"ping": 1, "$db": "admin"})
refused(2013, b"", length=15)
refused(2013, b"", length=-1)
refused(2013, b"", length=1 << 30)
# More than a client may send before it has logged in.
refused(2013, ping, length=1 << 20)
refused(1234, ping)
refused(2001, ping)
refused(2013, struct.pack("<I", 1 << 5) + ping[4:])
refused(2013, struct.pack("<I", 1) + ping[4:] + b"\0\0\0\0")
refused(2013, ping + ping[4:])
# Sections of a message would be compared with each other.
refused(2013, ping + b"".join(b"\x01\x09\0\0\0%04d\0" % number for number in range(7000)))
refused(2004, struct.pack("<i", 0) + b"test.things\0" + struct.pack("<ii", 0, -1) + empty)
# Compression that was not negotiated; then a bomb, and sizes that are wrong.
bomb = zlib.compress(bytes(40_000_000))
refused(2012, struct.pack("<iiB", 2013, 100, 2) + bomb)
for size in (100, 1 << 30, -1, 60_000):
    raw = Raw(port)
    assert raw.message(hello=1, compression=["zlib"], **{"$db": "admin"})["compression"] == ["zlib"]
    raw.send(2012, struct.pack("<iiB", 2013, size, 2) + bomb)
    assert raw.is_closed()
raw = Raw(port)
raw.message(hello=1, compression=["zlib", "unknown", 7], **{"$db": "admin"})
raw.send(2012, struct.pack("<iiB", 2013, len(ping), 2) + zlib.compress(ping))
opcode, body = raw.receive()
assert opcode == 2012 and struct.unpack("<iiB", body[:9])[::2] == (2013, 2)
# Mutated messages: an answer or a closed connection, and the gateway lives.
for _ in range(300):
    raw = Raw(port)
    body = bytearray(chance.choice([ping, struct.pack("<I", 0) + b"\0" + bson.encode({"hello": 1, "$db": "admin", "compression": ["zlib"]})]))
    for _ in range(chance.randint(1, 4)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    raw.send(2013, bytes(body))
    raw.socket.settimeout(1)
    try:
        raw.receive()
    except (EOFError, OSError, AssertionError):
        pass
    raw.socket.close()
    noise = Raw(port)
    noise.socket.sendall(chance.randbytes(chance.randint(1, 200)))
    noise.socket.close()
# Many elements, each of which is looked at: neither memory nor time grows by them.
things = Raw(port).login(user, password)
for command in (
    {"killCursors": "things", "cursors": [bson.Int64(7)] * 500_000},
    {"killCursors": "things", "cursors": [1] * 500_000},
    {"aggregate": "things", "pipeline": [{}] * 500_000, "cursor": {}},
):
    assert things.message(**command, **{"$db": "test"})["ok"] == 0.0, next(iter(command))
# No NUL reaches PostgreSQL in a name.
for database, code, command in (
    ("a\0b", 73, {"find": "things"}),
    ("a\0b", 73, {"ping": 1, "comment": "x"}),
    ("test", 73, {"find": "a\0b"}),
    ("test", 73, {"insert": "a\0b", "documents": [{}]}),
    ("test", 73, {"aggregate": "things", "pipeline": [{"$unionWith": "a\0b"}], "cursor": {}}),
):
    reply = things.message(**command, **{"$db": database})
    assert reply.get("code") == code, (database, command, reply)
for payload in (b"n,,n=a\0b,r=abcdefgh", b"n,,n=ann,r=abc\0defgh", b"n,,n=ann,r=abc\xffdefgh"):
    reply = Raw(port).message(saslStart=1, mechanism="SCRAM-SHA-256", payload=payload, **{"$db": "admin"})
    assert reply.get("code") == 18, (payload, reply)
# Commands that the router must refuse well.
with pymongo.MongoClient("127.0.0.1", port, username=user, password=password) as it:
    for command in (
        {"find": "things", "filter": {"a": {"$oid": "x"}}},
        {"find": 7},
        {"insert": "things", "docs": []},
        {"": 1},
        {"find": "a\0b"},
        {"aggregate": "things", "pipeline": [{"$x": 1}], "cursor": {}},
        {"getMore": "x", "collection": "things"},
        {"killCursors": "things", "cursors": ["x"]},
        {"find": "things", "lsid": 3, "txnNumber": bson.Int64(1)},
    ):
        reply = it.test.command(command, check=False)
        assert reply["ok"] == 0.0 and reply["code"] and reply["codeName"] and reply["errmsg"], reply
    deep = {}
    for _ in range(150):
        deep = {"a": deep}
    assert it.test.command({"find": "things", "filter": deep}, check=False)["ok"] == 0.0
    assert it.admin.command("ping")["ok"] == 1.0
print("done")
