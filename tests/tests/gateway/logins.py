"""Logins: logins.py PORT USER PASSWORD."""

import sys

import pymongo
from pymongo.errors import OperationFailure
from raw import Raw

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def client(name, secret, **options):
    return pymongo.MongoClient("127.0.0.1", port, username=name, password=secret, serverSelectionTimeoutMS=20000, **options)


def code(call):
    try:
        call()
    except OperationFailure as error:
        return error.code
    raise AssertionError("it succeeds")


# Every database may be named, and every compressor offered.
for source in ("admin", "test", "other"):
    with client(user, password, authSource=source) as it:
        info = it.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        assert info["authenticatedUsers"] == [{"user": user, "db": source}], info
        assert info["authenticatedUserRoles"] and info["authenticatedUserPrivileges"], info
for compressor in ("zstd", "snappy", "zlib"):
    with client(user, password, compressors=compressor) as it:
        it.test.things.replace_one({"_id": compressor}, {"text": "x" * 100_000}, upsert=True)
        assert len(it.test.things.find_one({"_id": compressor})["text"]) == 100_000

# Wrong passwords and unknown users are refused alike, also if the password is right for another one.
with client("postgres", "no") as one, client("nobody_at_all", password) as other, client(user, password + " ") as third:
    assert [code(it.test.things.find_one) for it in (one, other, third)] == [18] * 3
assert code(lambda: client(user, password, authMechanism="SCRAM-SHA-1").test.things.find_one()) == 334

# Nothing but a handshake without a login.
with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=20000) as it:
    assert it.admin.command("ping")["ok"] == 1.0 and it.admin.command("hello")["msg"] == "isdbgrid"
    for command in ("buildInfo", "listDatabases", "getLog", "noSuchCommand"):
        assert code(lambda command=command: it.admin.command(command)) == 13
    assert code(lambda: it.test.things.find_one()) == 13

# An old driver's handshake and login, by OP_QUERY.
raw = Raw(port)
hello = raw.query("admin", isMaster=1, saslSupportedMechs=f"admin.{user}")
assert hello["ismaster"] is True and hello["saslSupportedMechs"] == ["SCRAM-SHA-256"] and hello["helloOk"] is True
assert raw.query("admin", saslContinue=1, conversationId=1, payload=b"x")["code"] == 17
assert raw.query("admin", saslStart=1, mechanism="SCRAM-SHA-256", payload=b"n,,r=x")["code"] == 18
assert raw.query("admin", saslStart=1, mechanism="SCRAM-SHA-256", payload=b"x" * 5000)["code"] == 2
first = raw.query("admin", saslStart=1, mechanism="SCRAM-SHA-256", payload=f"n,,n={user},r=abcdefghijkl".encode())
assert first["ok"] == 1.0 and first["done"] is False and first["payload"].startswith(b"r=abcdefghijkl")
# A proof that is wrong, and no second attempt in the conversation.
nonce = first["payload"].split(b",")[0]
assert raw.query("admin", saslContinue=1, conversationId=1, payload=b"c=biws," + nonce + b",p=" + b"A" * 43 + b"=")["code"] == 18
assert raw.query("admin", saslContinue=1, conversationId=1, payload=b"")["code"] == 17
assert raw.message(find="things", **{"$db": "test"})["code"] == 13
assert raw.message(whatsmyuri=1, **{"$db": "admin"})["you"].startswith("127.0.0.1:")
assert list(raw.message(ping=1, **{"$db": "admin"})) == ["ok", "operationTime", "$clusterTime"]
print("done")
