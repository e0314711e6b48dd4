"""Files by GridFS: gridfs.py PORT URI."""

import io
import os
import sys
import threading

# The folder of this program has a file of the library's name.
sys.path.pop(0)
import gridfs
import pymongo

client = pymongo.MongoClient(sys.argv[2])
db = client.files
bucket = gridfs.GridFSBucket(db, chunk_size_bytes=100_000)


def failure(call, kind):
    try:
        call()
    except kind:
        return
    raise AssertionError("it succeeds")


def files():
    content = os.urandom(1_234_567)
    made = bucket.upload_from_stream("photo.jpg", io.BytesIO(content), metadata={"of": "ann"})
    assert bucket.open_download_stream(made).read() == content
    assert db.fs.chunks.count_documents({"files_id": made}) == 13
    reader = bucket.open_download_stream_by_name("photo.jpg")
    reader.seek(1_000_001)
    assert reader.read(10) == content[1_000_001:1_000_011] and reader.metadata == {"of": "ann"}
    # The name's second version.
    with bucket.open_upload_stream("photo.jpg") as writer:
        writer.write(b"new")
    assert bucket.open_download_stream_by_name("photo.jpg").read() == b"new"
    assert bucket.open_download_stream_by_name("photo.jpg", revision=0).read() == content
    bucket.rename(made, "old.jpg")
    assert [each.filename for each in bucket.find({"length": {"$gt": 1000}})] == ["old.jpg"]
    bucket.delete(made)
    assert db.fs.chunks.count_documents({"files_id": made}) == 0
    failure(lambda: bucket.open_download_stream(made), gridfs.NoFile)
    failure(lambda: db.fs.chunks.insert_one(db.fs.chunks.find_one({}, {"_id": 0})), pymongo.errors.DuplicateKeyError)


def many_writers():
    """Each of them creates the indexes first."""
    db.drop_collection("fs.files")
    db.drop_collection("fs.chunks")
    errors = []

    def write(number):
        try:
            own = gridfs.GridFSBucket(pymongo.MongoClient(sys.argv[2]).files)
            for each in range(3):
                own.upload_from_stream(f"{number}-{each}", b"x" * 1000)
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors, errors
    assert db.fs.files.count_documents({}) == 18


files()
many_writers()
print("done")
