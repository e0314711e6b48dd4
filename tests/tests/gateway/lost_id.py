"""A transaction that a crash of the router ends: lost_id.py PORT OTHER-PORT USER PASSWORD; a line of stdin follows the crash."""

import os
import sys

import bson
from raw import Raw

port, other, user, password = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
of = {"lsid": {"id": bson.Binary(os.urandom(16), 4)}, "txnNumber": bson.Int64(1), "autocommit": False}
begun = Raw(port).login(user, password).message(insert="things", documents=[{"_id": "lost"}], startTransaction=True, **of, **{"$db": "here"})
token = begun["recoveryToken"]
assert token["xid"], begun
print("in a transaction", flush=True)
sys.stdin.readline()
# Other transactions get ids now. None of them gets that one.
elsewhere = Raw(other).login(user, password)
for n in range(20):
    assert elsewhere.message(insert="things", documents=[{"_id": n}], **{"$db": "here"})["ok"] == 1
result = elsewhere.message(commitTransaction=1, recoveryToken=token, **of, **{"$db": "admin"})
assert result["ok"] == 0 and result["code"] == 251, result
assert elsewhere.message(count="things", query={"_id": "lost"}, **{"$db": "here"})["n"] == 0
print("done", flush=True)
