"""A commit whose connection breaks: lost_commit.py PORT USER PASSWORD DATABASE."""

import sys

import pymongo
from pymongo.errors import PyMongoError

port, user, password, database = int(sys.argv[1]), *sys.argv[2:5]
client = pymongo.MongoClient("127.0.0.1", port, username=user, password=password, serverSelectionTimeoutMS=60000)
things = client[database].things
calls = []


def work(session):
    calls.append(1)
    things.insert_one({"n": 1}, session=session)
    print("writes", flush=True)


with client.start_session() as session:
    try:
        session.with_transaction(work)
        print("committed", len(calls), things.count_documents({}))
    except PyMongoError as error:
        print("failed", len(calls), error.code, error.details.get("errorLabels"))
