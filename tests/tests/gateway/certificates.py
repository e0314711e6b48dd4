"""Logins by certificate: certificates.py PORT FOLDER PASSWORD. The folder has the authority's certificate and those of clients."""

import sys

import pymongo
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

port, folder, password = int(sys.argv[1]), *sys.argv[2:4]
MECHANISM = "MONGODB-X509"


def client(certificate=None, patience=20000, **options):
    if certificate:
        options["tlsCertificateKeyFile"] = f"{folder}/{certificate}.pem"
    authority = f"{folder}/root.crt"
    return pymongo.MongoClient("127.0.0.1", port, tls=True, tlsCAFile=authority, serverSelectionTimeoutMS=patience, **options)


def code(certificate=None, **options):
    with client(certificate, **options) as it:
        try:
            it.test.things.find_one()
        except OperationFailure as error:
            return error.code
    raise AssertionError(f"{certificate} {options} is accepted")


def users(it):
    return it.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]


# A role of whom PostgreSQL demands a password (first, as the gateway logs ten lines a second), one that does not exist, one that is not in the
# map, and subjects without a role.
for name in ("bob", "ghost", "unmapped", "two", "none", "long"):
    assert code(name, authMechanism=MECHANISM) == 18, name

# By its certificate a client is the role of its common name, whether it names itself or not.
for role, names in (
    ("ann", ("ann", "CN=ann,O=Shop\\, Ltd")),
    ("jörg", ("jörg", "CN=jörg", "CN=j\\C3\\B6rg")),
):
    for name in (None, *names):
        with client(role, authMechanism=MECHANISM, username=name) as it:
            it.test.things.replace_one({"_id": role}, {"role": role}, upsert=True)
            assert it.test.things.find_one({"_id": role})["role"] == role
            assert users(it) == [{"user": role, "db": "$external"}], users(it)
    for name in ("bob", "CN=bob", "O=Shop\\, Ltd,CN=ann", "", "postgres"):
        # pymongo sends no empty name.
        assert not name or code(role, authMechanism=MECHANISM, username=name) == 18, name

assert code(authMechanism=MECHANISM) == 18, "without a certificate"
# A certificate alone is no login.
assert code("ann") == 13
# A certificate of another authority.
with client("elsewhere/ann", patience=1000, authMechanism=MECHANISM) as it:
    try:
        it.admin.command("ping")
        raise AssertionError("it is connected")
    except ServerSelectionTimeoutError:
        pass

# Passwords are checked as before, with any certificate or none.
for certificate in (None, "ann"):
    with client(certificate, username="bob", password=password) as it:
        assert it.test.things.count_documents({}) == 2 and users(it) == [{"user": "bob", "db": "admin"}]
    assert code(certificate, username="bob", password="wrong") == 18
    # PostgreSQL lets the gateway in as this role, which proves no password.
    assert code(certificate, username="ann", password=password) == 18
    assert code(certificate, username="bob", password=password, authMechanism="SCRAM-SHA-1") == 334

with client("ann", authMechanism=MECHANISM) as it:
    assert it.test.things.find_one()
    print("logged in", flush=True)
    input()
    try:
        it.test.things.find_one()
        raise AssertionError("it goes on")
    except OperationFailure as error:
        assert error.code == 18, error
assert code("ann", authMechanism=MECHANISM) == 18
with client("ann", username="ann", password=password) as it:
    assert it.test.things.find_one()
print("done")
