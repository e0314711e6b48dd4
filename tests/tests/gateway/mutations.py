"""Random bytes and mutated messages, while other clients work: mutations.py PORT USER PASSWORD OTHER PASSWORD SECONDS SEED."""

import random
import struct
import sys
import threading
import time
import zlib

import bson
import pymongo
from raw import Raw

port, user, password, other, its_password = int(sys.argv[1]), *sys.argv[2:6]
seconds, seed = float(sys.argv[6]), int(sys.argv[7])
print("seed", seed, flush=True)
until = time.monotonic() + seconds
# The longest time that a client beside may wait for an answer.
PATIENCE = 30
OP_QUERY, OP_COMPRESSED, OP_MSG = 2004, 2012, 2013

session = {"id": bson.Binary(bytes(range(16)), 4)}
COMMANDS = [
    {"hello": 1, "compression": ["zlib"], "client": {"driver": {"name": "x", "version": "1"}}},
    {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=ann,r=abcdefgh"},
    {"ping": 1},
    {"insert": "things", "documents": [{"_id": n, "t": "text", "l": bson.Int64(7), "a": [1, {"b": None}]} for n in range(3)], "ordered": False},
    {"insert": "things", "documents": [{}], "lsid": session, "txnNumber": bson.Int64(1)},
    {"find": "things", "filter": {"a.b": {"$in": [1, None]}}, "sort": {"t": -1}, "projection": {"t": 1}, "batchSize": 1},
    {"find": "things", "lsid": session, "txnNumber": bson.Int64(2), "autocommit": False, "startTransaction": True},
    {"commitTransaction": 1, "lsid": session, "txnNumber": bson.Int64(2), "autocommit": False},
    {"aggregate": "things", "pipeline": [{"$match": {"l": {"$gt": 1}}}, {"$group": {"_id": "$t", "n": {"$sum": 1}}}], "cursor": {"batchSize": 1}},
    {"update": "things", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a.0": 2}, "$push": {"p": 1}}, "upsert": True}]},
    {"delete": "things", "deletes": [{"q": {"t": {"$exists": True}}, "limit": 1}]},
    {"findAndModify": "things", "query": {"_id": 1}, "update": [{"$set": {"x": {"$add": ["$l", 1]}}}], "new": True},
    {"getMore": bson.Int64(77), "collection": "things"},
    {"killCursors": "things", "cursors": [bson.Int64(77)]},
    {"distinct": "things", "key": "t", "query": {}},
    {"listCollections": 1, "nameOnly": True},
    {"explain": {"count": "things"}, "verbosity": "queryPlanner"},
]


def message(chance):
    """An operation of a driver: its code and its body."""
    command = chance.choice(COMMANDS)
    database = {"$db": "test"}
    kind = chance.randrange(4)
    if kind == 0:
        body = struct.pack("<i", 0) + b"test.$cmd\0" + struct.pack("<ii", 0, -1) + bson.encode(command)
        return OP_QUERY, body
    documents = command.get("documents")
    if documents and kind == 1:
        rest = {name: value for name, value in command.items() if name != "documents"}
        sequence = b"documents\0" + b"".join(map(bson.encode, documents))
        sections = b"\0" + bson.encode({**rest, **database}) + b"\x01" + struct.pack("<i", 4 + len(sequence)) + sequence
    else:
        sections = b"\0" + bson.encode({**command, **database})
    body = struct.pack("<I", chance.choice([0, 0, 0, 2, 1 << 16])) + sections
    if kind == 2:
        return OP_COMPRESSED, struct.pack("<iiB", OP_MSG, len(body), 2) + zlib.compress(body)
    return OP_MSG, body


def mutated(chance, opcode, body):
    """The whole message with a few changes."""
    whole = bytearray(struct.pack("<iiii", 16 + len(body), 7, 0, opcode) + body)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        # Mostly behind the header, so that the rest is read.
        at = chance.randrange(16 if chance.random() < 0.8 and len(whole) > 17 else 0, len(whole))
        change = chance.randrange(6)
        if change == 0:
            whole[at] = chance.randrange(256)
        elif change == 1:
            whole[at] ^= 1 << chance.randrange(8)
        elif change == 2:
            whole[at : at + 4] = struct.pack("<i", chance.choice([0, -1, 1, 4, 5, 1 << 30, -(1 << 31), len(whole)]))
        elif change == 3:
            del whole[at : at + chance.randint(1, 9)]
        elif change == 4:
            whole[at:at] = chance.randbytes(chance.randint(1, 9))
        else:
            part = whole[at : at + chance.randint(1, 40)]
            whole[at:at] = part * chance.choice([1, 2, 50])
        if len(whole) < 17:
            break
    if chance.random() < 0.8:
        # Then the length is right, and what is in the message is read.
        whole[:4] = struct.pack("<i", len(whole))
    return bytes(whole)


counts = {"messages": 0, "answers": 0, "served": 0}
failed = []


def attack(number):
    chance = random.Random(seed * 1000 + number)
    raw = None
    while time.monotonic() < until and not failed:
        try:
            if raw is None:
                raw = Raw(port)
                # Some of them have not logged in.
                if number % 2:
                    raw.message(hello=1, compression=["zlib"], **{"$db": "admin"})
                    raw.login(user, password)
            noise = chance.random() < 0.05
            raw.socket.sendall(chance.randbytes(chance.randint(1, 300)) if noise else mutated(chance, *message(chance)))
            counts["messages"] += 1
            raw.socket.settimeout(0.3)
            raw.socket.recv(1 << 16)
            counts["answers"] += 1
            if chance.random() < 0.02:
                raise EOFError
        except (OSError, EOFError, AssertionError, bson.errors.BSONError, struct.error):
            if raw is not None:
                raw.socket.close()
            raw = None


def work(number):
    """A client beside them."""
    try:
        with pymongo.MongoClient("127.0.0.1", port, username=other, password=its_password, serverSelectionTimeoutMS=PATIENCE * 1000) as it:
            things, n = it.test.other, 0
            while time.monotonic() < until:
                began, n = time.monotonic(), n + 1
                things.insert_one({"_id": f"{number}/{n}", "client": number})
                assert things.find_one({"_id": f"{number}/{n}"})["client"] == number
                assert things.delete_one({"_id": f"{number}/{n}"}).deleted_count == 1
                waited = time.monotonic() - began
                assert waited < PATIENCE, f"{waited} s"
                counts["served"] += 1
    except Exception as error:
        failed.append(error)


threads = [threading.Thread(target=attack, args=(number,), daemon=True) for number in range(8)]
threads += [threading.Thread(target=work, args=(number,), daemon=True) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(seconds + 120)
print(counts, flush=True)
assert not failed, failed
assert not any(thread.is_alive() for thread in threads)
assert counts["served"] >= seconds / 10 and counts["answers"] > 0, counts
with pymongo.MongoClient("127.0.0.1", port, username=user, password=password) as it:
    assert it.admin.command("ping")["ok"] == 1.0
print("done")
