"""What clients use together: limits.py PORT USER PASSWORD OTHER PASSWORD. The gateway has 256 MiB for messages, and 16 logins."""

import socket
import struct
import sys
import threading
import time

import bson
import pymongo
import zlib
from raw import Raw

port, user, password, other, its_password = int(sys.argv[1]), *sys.argv[2:6]


def login(name, secret):
    """A connection after its login, without a driver."""
    raw = Raw(port)
    raw.message(hello=1, compression=["zlib"], **{"$db": "admin"})
    return raw.login(name, secret)


def works(name, secret):
    with pymongo.MongoClient("127.0.0.1", port, username=name, password=secret, serverSelectionTimeoutMS=60000) as it:
        assert it.admin.command("ping")["ok"] == 1.0
        return it.admin.command("ping", comment="x" * 1_000_000)["ok"] == 1.0


# Large messages of one role: all but the last byte of each is sent, as far as the gateway reads it.
large = struct.pack("<I", 0) + b"\0" + bson.encode({"ping": 1, "comment": "x" * 46_900_000, "$db": "admin"})
packed = struct.pack("<iiB", 2013, len(large), 2) + zlib.compress(large, 1)
complete = threading.Event()
answered = []


def send(raw, opcode, body):
    raw.socket.settimeout(110)
    raw.socket.sendall(struct.pack("<iiii", 16 + len(body), 7, 0, opcode) + body[:-1])
    complete.wait()
    raw.socket.sendall(body[-1:])
    answered.append(raw.receive()[0])


connections = [login(user, password) for _ in range(12)]
threads = [threading.Thread(target=send, args=(raw, *((2013, large) if number % 2 else (2012, packed))), daemon=True) for number, raw in enumerate(connections)]
for thread in threads:
    thread.start()
time.sleep(3)
# The other role has its part, and small messages of the first one take nothing.
assert works(other, its_password)
assert connections[0] and login(user, password).message(ping=1, **{"$db": "admin"})["ok"] == 1.0
complete.set()
for thread in threads:
    thread.join()
assert sorted(answered) == [2012] * 6 + [2013] * 6, answered
assert works(user, password)

# Logins of another address that are begun and left: each ends after a short time, and others need not wait for them.
silent = []
for _ in range(32):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=("127.0.0.2", 0))
    command = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,n={user},r=abcdefghijkl".encode(), "$db": "admin"}
    body = struct.pack("<I", 0) + b"\0" + bson.encode(command)
    connection.sendall(struct.pack("<iiii", 16 + len(body), 7, 0, 2013) + body)
    silent.append(connection)
assert works(other, its_password)
# All of them are served in turn and disconnected, where the first eight alone took ten seconds.
for connection in silent:
    while connection.recv(4096):
        pass
assert works(user, password)
print("done")
