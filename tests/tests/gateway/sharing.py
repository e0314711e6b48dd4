"""Many clients over few sessions: sharing.py PORT USER PASSWORD OTHER OTHERS_PASSWORD CLIENTS."""

import sys
import threading

import pymongo
from pymongo.errors import OperationFailure

port, user, password, other, others, count = int(sys.argv[1]), *sys.argv[2:6], int(sys.argv[6])


def client(name, secret):
    return pymongo.MongoClient("127.0.0.1", port, username=name, password=secret, maxPoolSize=1, serverSelectionTimeoutMS=60000)


clients = [client(user, password) for _ in range(count)]
failed = []


def work(number):
    try:
        things = clients[number].test.things
        for n in range(10):
            things.insert_one({"_id": f"{number}/{n}", "k": 1, "client": number})
        found = list(things.find({"client": number}).batch_size(3))
        assert len(found) == 10 and all(each["client"] == number for each in found)
    except Exception as error:
        failed.append(error)


threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed

# Another role has other sessions: neither the documents nor the cursors of this one.
batch = clients[0].test.command("find", "things", batchSize=2)["cursor"]
with client(other, others) as it:
    for call in (
        lambda: it.test.things.find_one(),
        lambda: it.test.command("getMore", batch["id"], collection="things"),
    ):
        try:
            call()
            raise AssertionError("it succeeds")
        except OperationFailure as error:
            assert error.code in (13, 43), error.details
    assert it.test.command("killCursors", "things", cursors=[batch["id"]])["cursorsNotFound"] == [batch["id"]]
# Any client of the role reads on, as drivers do with their pools.
assert len(clients[1].test.command("getMore", batch["id"], collection="things", batchSize=5)["cursor"]["nextBatch"]) == 5
print("ready", flush=True)
sys.stdin.read()
