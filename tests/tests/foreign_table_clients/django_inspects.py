"""Django's models of a foreign table, as `inspectdb` makes them: django_inspects.py URL."""

import io
import re
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings

address = urlsplit(sys.argv[1])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address.path.lstrip("/"),
            "USER": address.username,
            "HOST": address.hostname,
            "PORT": address.port,
            "OPTIONS": {"options": "-c search_path=shop,public"},
        }
    },
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.contrib.postgres.fields import ArrayField  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, models, transaction  # noqa: E402
from django.db.models import Avg, Count, F, Max  # noqa: E402

output = io.StringIO()
call_command("inspectdb", "inbox", "--include-views", stdout=output)
source = output.getvalue()
for line in (
    "class Inbox(models.Model):",
    "recipient = models.TextField()",
    "sent = models.DateTimeField()",
    "likes = models.BigIntegerField(blank=True, null=True)",
    "doc = models.JSONField()",
    "managed = False",
    "db_table = 'inbox'",
):
    assert line in source, f"{line}: {source}"
# The first column is the key, which PostgreSQL does not know of a foreign table.
source = re.sub(r"(field_id = models\.BigIntegerField\()", r"\1primary_key=True, ", source)
assert "primary_key=True" in source, source
source = source.replace("        managed = False\n", "        managed = False\n        app_label = 'shop'\n")
# It knows no arrays of any table.
source, replaced = re.subn(r"tags = models\.TextField\(", "tags = ArrayField(models.TextField(), ", source)
assert replaced == 1, source
names = {"ArrayField": ArrayField}
exec(source, names)
Inbox = names["Inbox"]

assert Inbox.objects.get(pk=4).recipient == "user0"
assert [m.pk for m in Inbox.objects.filter(recipient="user1").order_by("-sent")[:3]] == [37, 33, 29]
assert Inbox.objects.filter(recipient__startswith="user", likes__gte=3).count() == 15
assert Inbox.objects.filter(pk__in=[1, 2, 999]).count() == 2
assert Inbox.objects.filter(likes__isnull=True, recipient="user3").exists()
assert Inbox.objects.filter(doc__tags__contains=["t1"]).count() == 13
groups = Inbox.objects.filter(recipient__startswith="user").values("recipient").annotate(n=Count("*"), most=Max("likes")).order_by("recipient")
assert [(g["recipient"], g["n"], g["most"]) for g in groups] == [("user0", 10, 13), ("user1", 10, 4), ("user2", 10, 10), ("user3", 10, 4)], list(groups)
assert Inbox.objects.filter(recipient="user1").aggregate(Avg("likes"))["likes__avg"] == 2.0

message = Inbox.objects.get(pk=5)
message.likes = 77
message.save(update_fields=["likes"])
assert Inbox.objects.get(pk=5).doc["likes"] == 77
assert Inbox.objects.filter(recipient="user1").update(likes=F("likes") + 1) == 10
made = Inbox.objects.create(pk=7000, recipient="django", sent=message.sent, likes=1, doc={"more": {"a": 1}})
assert Inbox.objects.get(doc__more__a=1).pk == 7000
Inbox.objects.bulk_create([Inbox(pk=7001 + n, recipient="django", sent=message.sent, doc={}) for n in range(100)], batch_size=40)
assert sum(1 for _ in Inbox.objects.filter(recipient="django").iterator(chunk_size=10)) == 101
assert Inbox.objects.filter(recipient="django").exclude(pk=made.pk).delete()[0] == 100
made.delete()
try:
    with transaction.atomic():
        Inbox.objects.all().delete()
        raise ValueError("undone")
except ValueError:
    pass
assert Inbox.objects.count() == 228
with connection.cursor() as cursor:
    assert [column.name for column in connection.introspection.get_table_description(cursor, "inbox")][:3] == ["_id", "recipient", "sent"]
    assert connection.introspection.get_constraints(cursor, "inbox") == {}
print("done")
