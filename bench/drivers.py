"""One client of `bench/gateway`: drivers.py pymongo|psycopg URL SECONDS find|insert DOCUMENTS. Prints its calls a second, its own processor time for a call in
microseconds, and the number of calls."""

import sys
import time

driver, url, seconds, what, documents = sys.argv[1:]
documents = int(documents)

if driver == "pymongo":
    from bson import ObjectId
    from pymongo import MongoClient

    database = MongoClient(url).bench
    find = lambda key: database.inbox.find_one({"_id": key})
    insert = lambda key: database.sent.insert_one({"recipient": "user 17", "sent": key, "text": "x" * 300}).acknowledged
else:
    import json

    import psycopg

    connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    call = lambda function, namespace, argument: connection.execute(
        f"SELECT docshard.{function}(%s, %s)", (namespace, json.dumps(argument)), prepare=True
    ).fetchone()[0]
    find = lambda key: call("find_one", "bench.inbox", {"_id": key})
    insert = lambda key: call("insert_one", "bench.sent", {"recipient": "user 17", "sent": key, "text": "x" * 300})

run = find if what == "find" else insert
key = calls = 0
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < float(seconds):
    key = (key + 104_729) % documents
    if not run(key):
        sys.exit(f"{what} of {key}: no result")
    calls += 1
print(round(calls / (time.monotonic() - began), 1), round(1e6 * (time.process_time() - used) / calls, 1), calls)
