"""Many clients while their router restarts: restarts.py PORT USER PASSWORD CLIENTS; lines of stdin: it has restarted; stop."""

import sys
import threading

import pymongo
from pymongo.errors import PyMongoError

port, user, password, count = int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
stop = threading.Event()
ready = threading.Barrier(count + 1)
wrong, lost, rounds = [], [], [0] * count


def work(number):
    client = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=60000)
    things = client.test.things
    written, doubtful, failures = 0, set(), 0
    things.insert_one({"_id": f"{number}/mine", "n": 0})
    ready.wait()
    while not stop.is_set():
        for write in (
            lambda: things.insert_one({"_id": f"{number}/{rounds[number]}", "of": number}),
            # Drivers do not send this one again.
            lambda: things.update_many({"_id": f"{number}/mine"}, {"$inc": {"n": 1}}),
        ):
            try:
                write()
            except PyMongoError as error:
                failures += 1
                doubtful.add(rounds[number])
                lost.append(f"{type(error).__name__} {error}"[:200])
        try:
            found = {int(each["_id"].split("/")[1]) for each in things.find({"of": number}, {"_id": 1})}
            # What was acknowledged is there.
            missing = set(range(rounds[number] + 1)) - doubtful - found
            if missing:
                wrong.append(f"{number} has lost {missing}")
            n = things.find_one({"_id": f"{number}/mine"})["n"]
            if not rounds[number] + 1 - len(doubtful) <= n <= rounds[number] + 1:
                wrong.append(f"{number} counts {n} in round {rounds[number]}")
        except PyMongoError as error:
            wrong.append(f"a read fails: {error}")
        rounds[number] += 1
    if failures > 1:
        wrong.append(f"{number}: {failures} writes have failed, of which one can have been in flight")


threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
ready.wait()
print("ready", flush=True)
sys.stdin.readline()
reached = list(rounds)
# Everybody goes on.
while any(now < then + 3 for now, then in zip(rounds, reached)) and not wrong:
    stop.wait(0.05)
print("goes on", flush=True)
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join()
print(len(lost), "writes failed:", *sorted(set(lost)), sep="\n", file=sys.stderr)
assert not wrong, wrong[:10]
print("done", flush=True)
