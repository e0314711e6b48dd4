"""Clients whose gateways and routers are killed: once.py PORT USER PASSWORD OTHER_PORT CLIENTS; a line of stdin: stop. Each write is applied
once, or, if pymongo reports an error, at most once."""

import sys
import threading

import pymongo
from pymongo.errors import PyMongoError

port, user, password, other, count = int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), int(sys.argv[5])
hosts = [f"127.0.0.1:{port}", f"127.0.0.1:{other}"]
stop, ready = threading.Event(), threading.Barrier(count + 1)
wrong, lost, done = [], [], [0] * count


def work(number):
    client = pymongo.MongoClient(hosts, username=user, password=password, serverSelectionTimeoutMS=60000, heartbeatFrequencyMS=500)
    things = client.test.things
    mine = {"_id": f"mine {number}"}
    things.insert_one({**mine, "tag": number, "n": 0, "ops": []})
    ready.wait()
    acknowledged, doubtful = [], []
    kinds = [
        lambda op: things.update_one(mine, {"$inc": {"n": 1}, "$push": {"ops": op}}),
        lambda op: things.find_one_and_update({"tag": number}, {"$inc": {"n": 1}, "$push": {"ops": op}}),
        lambda op: things.update_one(mine, {"$inc": {"n": 1}, "$push": {"ops": op}}, upsert=True),
        lambda op: things.bulk_write([pymongo.UpdateOne(mine, {"$inc": {"n": 1}}), pymongo.UpdateOne(mine, {"$push": {"ops": op}})]),
        lambda op: (things.insert_one({"by": number, "op": op}), things.update_one(mine, {"$inc": {"n": 1}, "$push": {"ops": op}})),
    ]
    op = 0
    while not stop.is_set():
        try:
            kinds[op % len(kinds)](op)
            acknowledged.append(op)
        except PyMongoError as error:
            doubtful.append(op)
            lost.append(f"{type(error).__name__} {error}"[:300])
        op += 1
        done[number] = op
    found = things.find_one(mine)
    ops = found["ops"]
    if len(ops) != len(set(ops)):
        wrong.append(f"{number}: applied twice: {sorted(op for op in set(ops) if ops.count(op) > 1)}")
    if set(acknowledged) - set(ops):
        wrong.append(f"{number}: lost: {sorted(set(acknowledged) - set(ops))}")
    if found["n"] != len(ops):
        wrong.append(f"{number}: {found['n']} increments and {len(ops)} entries")
    inserted = [each["op"] for each in things.find({"by": number})]
    if len(inserted) != len(set(inserted)):
        wrong.append(f"{number}: inserted twice")


threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
ready.wait()
print("ready", flush=True)
sys.stdin.readline()
# Everybody goes on.
reached = list(done)
while any(now < then + 5 for now, then in zip(done, reached)):
    stop.wait(0.05)
stop.set()
for thread in threads:
    thread.join()
print(sum(done), "writes,", len(lost), "failed:", *sorted(set(lost)), sep="\n", file=sys.stderr)
assert not wrong, wrong[:10]
print("done", len(lost), flush=True)
