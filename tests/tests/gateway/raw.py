"""MongoDB's wire protocol by hand, for what drivers do not send."""

import base64
import hashlib
import hmac
import os
import socket
import struct

import bson


class Raw:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, opcode, body, length=None):
        self.socket.sendall(struct.pack("<iiii", 16 + len(body) if length is None else length, 7, 0, opcode) + body)

    def take(self, count):
        taken = b""
        while len(taken) < count:
            part = self.socket.recv(count - len(taken))
            if not part:
                raise EOFError
            taken += part
        return taken

    def receive(self):
        length, _, reply_to, opcode = struct.unpack("<iiii", self.take(16))
        assert reply_to == 7
        return opcode, self.take(length - 16)

    def message(self, **command):
        """An OP_MSG and its reply."""
        self.send(2013, struct.pack("<I", 0) + b"\0" + bson.encode(command))
        opcode, body = self.receive()
        assert opcode == 2013 and body[:5] == bytes(5)
        return bson.decode(body[5:])

    def query(self, database, **command):
        """An OP_QUERY and its reply."""
        self.send(2004, struct.pack("<i", 0) + f"{database}.$cmd".encode() + b"\0" + struct.pack("<ii", 0, -1) + bson.encode(command))
        opcode, body = self.receive()
        assert opcode == 1 and struct.unpack("<iqii", body[:20]) == (8, 0, 0, 1)
        return bson.decode(body[20:])

    def login(self, user, password):
        """Logs in by SCRAM-SHA-256, as drivers do."""
        bare = f"n={user},r={base64.b64encode(os.urandom(18)).decode()}".encode()
        options = {"skipEmptyExchange": True}
        first = self.message(saslStart=1, mechanism="SCRAM-SHA-256", payload=b"n,," + bare, options=options, **{"$db": "admin"})
        challenge = first["payload"]
        fields = dict(field.split(b"=", 1) for field in challenge.split(b","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        final = b"c=biws,r=" + fields[b"r"]
        signature = hmac.digest(hashlib.sha256(key).digest(), bare + b"," + challenge + b"," + final, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature)))
        last = self.message(saslContinue=1, conversationId=1, payload=final + b",p=" + proof, **{"$db": "admin"})
        assert last["ok"] == 1.0 and last["done"], last
        return self

    def is_closed(self):
        """True if the server closes the connection instead of answering."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
