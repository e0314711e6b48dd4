"""Many clients without a user that begin at the same time: anonymous.py PORT CLIENTS."""

import sys
import threading

import pymongo

port, count = int(sys.argv[1]), int(sys.argv[2])
clients = [pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=60000) for _ in range(count)]
for one in clients:
    one.admin.command("ping")
together = threading.Barrier(count)
failed = []


def work(one):
    together.wait()
    try:
        assert one.test.things.find_one() is None
    except Exception as error:
        failed.append(error)


threads = [threading.Thread(target=work, args=(one,)) for one in clients]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
print("done")
