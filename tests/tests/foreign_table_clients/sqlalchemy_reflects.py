"""SQLAlchemy over a foreign table that it reflects: sqlalchemy_reflects.py URL."""

import sys

from sqlalchemy import BigInteger, Column, MetaData, Table, Text, create_engine, func, inspect, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.orm import Session, declarative_base, foreign, relationship

engine = create_engine(sys.argv[1].replace("postgresql://", "postgresql+psycopg://"))

inspector = inspect(engine)
assert inspector.get_foreign_table_names("shop") == ["inbox"], inspector.get_foreign_table_names("shop")
columns = {column["name"]: column for column in inspector.get_columns("inbox", schema="shop")}
assert list(columns) == ["_id", "recipient", "sent", "likes", "price", "tags", "token", "doc"], list(columns)
assert [str(columns[name]["type"]) for name in ("_id", "recipient", "sent", "doc")] == ["BIGINT", "TEXT", "TIMESTAMP", "JSONB"]
assert not columns["recipient"]["nullable"] and columns["likes"]["nullable"]

# A foreign table has no primary key, so the class declares it; the other columns are reflected.
metadata = MetaData(schema="shop")
Base = declarative_base(metadata=metadata)


class Message(Base):
    __table__ = Table("inbox", metadata, Column("_id", BigInteger, primary_key=True), autoload_with=engine)
    person = relationship("Person", primaryjoin=lambda: foreign(Message.recipient) == Person.name, viewonly=True)


class Person(Base):
    __tablename__ = "people"
    name = Column(Text, primary_key=True)
    city = Column(Text)


assert "recipient" in Message.__table__.c and [column.name for column in Message.__table__.primary_key] == ["_id"]
Base.metadata.create_all(engine, tables=[Person.__table__])

with Session(engine) as session:
    session.add_all([Person(name="user0", city="Bern"), Person(name="user1", city="Rome")])
    message = session.get(Message, 8)
    assert (message.recipient, message.likes, message.tags) == ("user0", 3, ["a", "t2"])
    message.likes += 10
    message.tags = [*message.tags, "orm"]
    # SET writes only what has changed, so the other attributes expire and are read again.
    session.commit()
    assert (message.likes, message.tags, message.doc["likes"]) == (13, ["a", "t2", "orm"], 13)
    assert session.scalars(select(Message._id).where(Message.person.has(city="Rome"), Message.likes > 2).order_by(Message.sent)).all() == [9, 13, 29, 33]
    pairs = select(Person.city, func.count()).join(Message, Message.recipient == Person.name).group_by(Person.city).order_by(Person.city)
    assert session.execute(pairs).all() == [("Bern", 10), ("Rome", 10)]
    assert session.get(Message, 9).person.city == "Rome"

    template = session.get(Message, 9)
    session.add_all([Message(_id=9000 + n, recipient="orm", sent=template.sent, likes=n) for n in range(50)])
    session.flush()
    assert session.scalar(select(func.count()).where(Message.recipient == "orm")) == 50
    session.delete(session.get(Message, 9001))
    session.flush()
    # The row is gone, and so the ORM sees that it does not match.
    assert session.get(Message, 9001) is None
    done = session.query(Message).filter(Message.recipient == "orm", Message.likes < 10).update({"likes": Message.likes + 100})
    assert done == 9, done
    done = session.query(Message).filter(Message.recipient == "orm", Message.likes >= 100).delete()
    assert done == 9, done
    # Rows that exist are skipped.
    again = [{"_id": 9000 + n, "recipient": "orm", "sent": template.sent} for n in range(60)]
    statement = insert(Message.__table__).on_conflict_do_nothing().returning(Message._id)
    added = [row[0] for row in session.execute(statement, again)]
    assert added == [*range(9000, 9010), *range(9050, 9060)], added
    session.rollback()
    assert session.scalar(select(func.count()).where(Message.recipient == "orm")) == 0

# Reflection of the whole schema, without a class.
everything = MetaData(schema="shop")
everything.reflect(engine, views=True)
assert set(everything.tables) == {"shop.people"}, set(everything.tables)
inbox = Table("inbox", everything, autoload_with=engine)
with engine.begin() as connection:
    newest = select(inbox.c._id).where(inbox.c.recipient == "user1").order_by(inbox.c.sent.desc()).limit(3)
    assert connection.scalars(newest).all() == [37, 33, 29]
    found = select(inbox.c._id).where(inbox.c.doc["likes"].as_integer() == 13)
    assert connection.scalars(found).all() == [8]
print("done")
