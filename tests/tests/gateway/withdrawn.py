"""A password that is withdrawn: withdrawn.py PORT USER PASSWORD NEW; a line of stdin follows each change of the role."""

import base64
import hashlib
import hmac
import os
import sys

from raw import Raw

port, user, password, new = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]


def log_in(secret):
    """A connection that is logged in; None if the login fails."""
    raw = Raw(port)
    first = f"n={user},r={base64.b64encode(os.urandom(18)).decode()}".encode()
    options = {"skipEmptyExchange": True}
    reply = raw.message(saslStart=1, mechanism="SCRAM-SHA-256", payload=b"n,," + first, options=options, **{"$db": "admin"})
    challenge = dict(part.split(b"=", 1) for part in reply["payload"].split(b","))
    salted = hashlib.pbkdf2_hmac("sha256", secret.encode(), base64.b64decode(challenge[b"s"]), int(challenge[b"i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    last = b"c=biws,r=" + challenge[b"r"]
    signed = hmac.digest(hashlib.sha256(key).digest(), first + b"," + reply["payload"] + b"," + last, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signed)))
    reply = raw.message(saslContinue=1, conversationId=1, payload=last + b",p=" + proof, **{"$db": "admin"})
    return raw if reply["ok"] else None


def count(raw):
    return raw.message(count="things", **{"$db": "test"})["ok"]


def is_out(raw, **command):
    command = command or {"insert": "things", "documents": [{"from": "a client whose password is void"}]}
    try:
        return raw.message(**command, **{"$db": "test"}) and False
    except (EOFError, ConnectionResetError):
        return True


def wait(word):
    print(word, flush=True)
    sys.stdin.readline()


old = [log_in(password), log_in(password), log_in(password)]
assert all(count(raw) == 1 for raw in old)
wait("logged in")
# The password is another one, and the role's sessions were ended.
assert log_in(password) is None
mine = log_in(new)
assert count(mine) == 1
# It has no power over the sessions of those who know the new one, either.
assert is_out(old.pop(), killAllSessions=[])
assert all(is_out(raw) for raw in old)
assert count(mine) == 1
wait("logged in anew")
# The role was dropped, and there is another one of this name.
other = log_in(password)
assert count(other) == 1
assert is_out(mine)
assert count(other) == 1
print("done", flush=True)
