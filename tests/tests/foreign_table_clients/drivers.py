"""A foreign table by drivers with parameters at the server: drivers.py URL."""

import asyncio
import datetime
import decimal
import sys
import time
import uuid

import asyncpg
import psycopg
from psycopg.types.json import Jsonb

url = sys.argv[1]
UTC = datetime.timezone.utc
START = datetime.datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "_id, recipient, sent, likes, tags, price, token, doc"


def hour(n):
    return START + datetime.timedelta(hours=n)


def failure(call, *arguments):
    try:
        call(*arguments)
    except psycopg.Error as error:
        return error.sqlstate
    raise AssertionError("it succeeds")


def plan(cursor, statement, parameters=()):
    cursor.execute("EXPLAIN (COSTS OFF) " + statement, parameters, prepare=False)
    return "\n".join(row[0] for row in cursor)


def psycopg_prepares(connection):
    """Every statement is prepared at the server, and executed so often that PostgreSQL tries a generic plan."""
    cursor = connection.cursor()
    insert = "INSERT INTO shop.inbox (_id, recipient, sent, likes, tags, price, token) VALUES (%s, %s, %s, %s, %s, %s, %s)"
    token = uuid.UUID(int=7)
    for n in range(40):
        likes = None if n % 8 == 7 else n % 5
        cursor.execute(insert, (n, f"user{n % 4}", hour(n), likes, ["a", f"t{n % 3}"], decimal.Decimal("1.25"), token), prepare=True)
        assert cursor.rowcount == 1
    cursor.executemany(insert, [(n, "many", hour(n), n, [], None, None) for n in range(100, 300)])
    assert cursor.rowcount == 200
    for mode in ("force_custom_plan", "auto", "force_generic_plan"):
        cursor.execute(f"SET plan_cache_mode = {mode}", prepare=False)
        for n in range(12):
            found = cursor.execute(f"SELECT {COLUMNS} FROM shop.inbox WHERE recipient = %s AND sent = %s", (f"user{n % 4}", hour(n)), prepare=True).fetchall()
            (row,) = found
            assert row[:5] == (n, f"user{n % 4}", hour(n), None if n == 7 else n % 5, ["a", f"t{n % 3}"]), row
            assert row[5:7] == (decimal.Decimal("1.25"), token) and row[7]["_id"] == n, row
            page = "SELECT _id FROM shop.inbox WHERE recipient = %s AND sent >= %s ORDER BY sent DESC LIMIT %s OFFSET %s"
            assert cursor.execute(page, ("user1", hour(5), 3, 1), prepare=True).fetchall() == [(33,), (29,), (25,)]
            some = "SELECT count(*) FROM shop.inbox WHERE _id = ANY(%s) AND likes IS NOT NULL"
            assert cursor.execute(some, ([n, n + 1, 1000],), prepare=True).fetchone() == (1 if n in (6, 7) else 2,)
            null = cursor.execute("SELECT count(*) FROM shop.inbox WHERE recipient = %s", (None,), prepare=True)
            assert null.fetchone() == (0,)
            contained = cursor.execute("SELECT count(*) FROM shop.inbox WHERE doc @> %s", (Jsonb({"tags": ["t2"]}),), prepare=True)
            assert contained.fetchone() == (13,)
            cursor.execute("UPDATE shop.inbox SET likes = %s, price = %s WHERE recipient = %s AND sent = %s", (n, None, "user3", hour(3)), prepare=True)
            assert cursor.rowcount == 1
            added = cursor.execute("UPDATE shop.inbox SET likes = likes + %s WHERE recipient = %s AND sent = %s RETURNING likes, price", (1, "user3", hour(3)), prepare=True)
            assert added.fetchall() == [(n + 1, None)]
            cursor.execute("UPDATE shop.inbox SET likes = 3, price = 1.25 WHERE _id = %s", (3,), prepare=True)
            cursor.execute("DELETE FROM shop.inbox WHERE recipient = %s AND likes = %s", ("many", 100 + n), prepare=True)
            assert cursor.rowcount == (1 if mode == "force_custom_plan" else 0)
    cursor.execute("RESET plan_cache_mode", prepare=False)
    connection.commit()
    assert failure(cursor.execute, insert, (3, "user3", hour(3), 1, None, None, None)) == "23505"
    connection.rollback()
    assert failure(cursor.execute, "SELECT 1 FROM shop.inbox WHERE sent = %s", ("no date",)) == "22007"
    connection.rollback()


def psycopg_streams(connection):
    """Cursors at the server, savepoints, COPY both ways, pipelines and binary results."""
    with connection.cursor(name="part") as part:
        part.itersize = 10
        part.execute("SELECT _id FROM shop.inbox WHERE recipient = 'many' ORDER BY sent")
        assert [row[0] for row in part] == list(range(112, 300))
    with connection.transaction():
        try:
            with connection.transaction():
                connection.execute("DELETE FROM shop.inbox WHERE recipient = 'many'")
                assert connection.execute("SELECT count(*) FROM shop.inbox").fetchone() == (40,)
                raise psycopg.Rollback()
        except psycopg.Error as error:
            raise AssertionError("the savepoint is rolled back") from error
        assert connection.execute("SELECT count(*) FROM shop.inbox").fetchone() == (228,)
    rows = [(n, "copied", hour(n), n, ["x"]) for n in range(1000, 4000)]
    for options, types in (("", None), ("(FORMAT binary)", ["int8", "text", "timestamptz", "int8", "text[]"])):
        with connection.cursor().copy(f"COPY shop.inbox (_id, recipient, sent, likes, tags) FROM STDIN {options}") as copy:
            if types:
                copy.set_types(types)
            for row in rows:
                copy.write_row(row)
        query = "SELECT _id, recipient, sent, likes, tags FROM shop.inbox WHERE recipient = 'copied' ORDER BY sent"
        with connection.cursor().copy(f"COPY ({query}) TO STDOUT {options}") as copy:
            copy.set_types(types or ["int8", "text", "timestamptz", "int8", "text[]"])
            assert list(copy.rows()) == rows
        binary = connection.cursor(binary=True).execute(query).fetchall()
        assert binary == rows
        assert connection.execute("DELETE FROM shop.inbox WHERE recipient = %s", ("copied",)).rowcount == 3000
        connection.commit()
    with connection.pipeline():
        cursors = [connection.execute("SELECT likes FROM shop.inbox WHERE _id = %s", (n,)) for n in range(4)]
    assert [cursor.fetchone() for cursor in cursors] == [(0,), (1,), (2,), (3,)]
    connection.commit()


def copy_shows_its_progress():
    with psycopg.connect(url) as connection, psycopg.connect(url, autocommit=True) as other:
        with connection.cursor().copy("COPY shop.inbox (_id, recipient, sent) FROM STDIN") as copy:
            for n in range(20_000, 40_000):
                copy.write_row((n, "progress", hour(n)))
            for _ in range(600):
                query = "SELECT relid::regclass::text, command, tuples_processed, bytes_processed FROM pg_stat_progress_copy WHERE pid = %s"
                progress = other.execute(query, (connection.info.backend_pid,)).fetchone()
                if progress and progress[2] > 5000:
                    break
                time.sleep(0.1)
            assert progress[:2] == ("shop.inbox", "COPY FROM") and progress[2] > 5000 and progress[3] > 100_000, progress
        connection.rollback()


async def asyncpg_prepares():
    """Named statements with binary parameters, whose types the server tells, as JDBC's drivers use them."""
    connection = await asyncpg.connect(url)
    one = await connection.prepare("SELECT recipient, likes, tags, price, token FROM shop.inbox WHERE recipient = $1 AND sent = $2")
    assert [str(parameter.name) for parameter in one.get_parameters()] == ["text", "timestamptz"]
    for n in range(12):
        row = await one.fetchrow(f"user{n % 4}", hour(n))
        assert tuple(row)[:3] == (f"user{n % 4}", None if n == 7 else n % 5, ["a", f"t{n % 3}"]), row
    like = await connection.prepare("UPDATE shop.inbox SET likes = coalesce(likes, 0) + $1 WHERE recipient = $2 AND sent = $3 RETURNING likes")
    for n in range(8):
        assert await like.fetchval(1, "user2", hour(2)) == 3 + n
    async with connection.transaction():
        cursor = await connection.cursor("SELECT _id FROM shop.inbox WHERE recipient = $1 ORDER BY sent", "many")
        assert [row[0] for row in await cursor.fetch(3)] == [112, 113, 114]
    done = await connection.copy_records_to_table("inbox", schema_name="shop", columns=["_id", "recipient", "sent"], records=[(n, "async", hour(n)) for n in range(5000, 5100)])
    assert done == "COPY 100"
    assert await connection.execute("DELETE FROM shop.inbox WHERE recipient = $1", "async") == "DELETE 100"
    await connection.close()


with psycopg.connect(url) as connection:
    psycopg_prepares(connection)
    psycopg_streams(connection)
copy_shows_its_progress()
asyncio.run(asyncpg_prepares())
print("done")
