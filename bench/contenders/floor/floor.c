/*
* The smallest possible router inside PostgreSQL: `setup` compiles it and loads it into the router's database.
 *
 * A backend keeps one libpq connection for each shard, with a wait-event set and with the statements that it has prepared
 * there. A call hashes the recipient, sends one prepared statement in binary form, waits so that a cancel is served, and
 * returns the answer. Documents travel as the bytes of jsonb, unchecked. There is no chunk map, no ownership check and no
 * filter, and a shard's transaction is independent of the router's: a real router adds all of that.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "libpq-fe.h"

PG_MODULE_MAGIC;

typedef enum Statement
{
	POINT_FIND,
	INBOX_VIEW,
	SCATTER,
	COUNT,
	FILTER_COUNT,
	UPDATE,
	INSERT,
	LOAD,
	STATEMENTS
} Statement;

/* `setup` creates the casts between jsonb and bytea: they change only the type. */
static const char *const texts[STATEMENTS] = {
	[POINT_FIND] = "SELECT doc::bytea FROM inbox WHERE recipient = $1::text AND sent = $2::text LIMIT 1",
	[INBOX_VIEW] = "SELECT doc::bytea FROM inbox WHERE recipient = $1::text ORDER BY sent DESC LIMIT 20",
	[SCATTER] = "SELECT doc::bytea, sent FROM inbox WHERE author = $1::text ORDER BY sent DESC LIMIT 20",
	[COUNT] = "SELECT count(*) FROM inbox",
	[FILTER_COUNT] = "SELECT count(*) FROM inbox WHERE (doc ->> 'likes')::int >= 40",
	[UPDATE] = "UPDATE inbox SET doc = jsonb_set(doc, '{likes}', to_jsonb((doc ->> 'likes')::int + 1)) "
	"WHERE recipient = $1::text AND sent = $2::text",
	[INSERT] = "INSERT INTO inbox (recipient, sent, author, doc) VALUES ($1::text, $2::text, $3::text, $4::bytea::jsonb)",
	[LOAD] = "INSERT INTO inbox SELECT doc -> '_id' ->> '$oid', doc ->> 'recipient', doc -> 'sent' ->> '$date', "
	"doc ->> 'from', doc FROM unnest($1::bytea[]) AS b, LATERAL (SELECT b::jsonb) AS d (doc)",
};

#define MOST_SHARDS 64
#define MOST_PARAMETERS 4

/* The largest number of documents in a result: the limit of INBOX_VIEW and SCATTER. */
#define LIMIT 20

typedef struct Shard
{
	const char *url;
	PGconn	   *connection;		/* NULL before the first use, and after a failure */
	WaitEventSet *wait;
	bool		prepared[STATEMENTS];
	bool		busy;			/* an answer is outstanding */
} Shard;

static Shard shards[MOST_SHARDS];
static int	shard_count = 0;

/* Closes connections that wait for an answer: after an ERROR they cannot be used. */
static void
abandon(void)
{
	for (int i = 0; i < shard_count; i++)
	{
		Shard	   *shard = &shards[i];
		PGcancel   *cancel;
		char		message[256];

		if (!shard->busy)
			continue;
		if ((cancel = PQgetCancel(shard->connection)) != NULL)
		{
			PQcancel(cancel, message, sizeof(message));
			PQfreeCancel(cancel);
		}
		FreeWaitEventSet(shard->wait);
		PQfinish(shard->connection);
		ReleaseExternalFD();
		shard->connection = NULL;
		shard->busy = false;
	}
}

static void
fail(Shard *shard, PGresult *result)
{
	char	   *message = pstrdup(result ? PQresultErrorMessage(result) : PQerrorMessage(shard->connection));

	PQclear(result);
	abandon();
	ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE), errmsg("shard %d: %s", (int) (shard - shards), message)));
}

/* The shards' URLs are a setting of the database, separated by blanks. */
static void
read_urls(void)
{
	const char *setting = GetConfigOption("floor.shards", false, false);
	char	   *urls = MemoryContextStrdup(TopMemoryContext, setting);

	for (char *url = strtok(urls, " "); url != NULL; url = strtok(NULL, " "))
	{
		if (shard_count == MOST_SHARDS)
			ereport(ERROR, (errmsg("more than %d shards", MOST_SHARDS)));
		shards[shard_count++].url = url;
	}
	if (shard_count == 0)
		ereport(ERROR, (errmsg("floor.shards is empty")));
}

static int
shards_known(void)
{
	if (shard_count == 0)
		read_urls();
	return shard_count;
}

static Shard *
shard_of(text *recipient)
{
	uint32		hash = hash_bytes((unsigned char *) VARDATA_ANY(recipient), VARSIZE_ANY_EXHDR(recipient));

	return &shards[hash % shards_known()];
}

/* Connects, once for each backend and shard. This is the only wait that serves no cancel. */
static void
open_connection(Shard *shard)
{
	const char *const keywords[] = {"dbname", "options", NULL};
	/* Like docshard's connections: one plan for all parameters, and no parallel workers if shards share processors. */
	const char *const values[] = {
		shard->url, "-c plan_cache_mode=force_generic_plan -c max_parallel_workers_per_gather=0", NULL
	};

	if (!AcquireExternalFD())
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_RESOURCES), errmsg("too many open files")));
	shard->connection = PQconnectdbParams(keywords, values, true);
	memset(shard->prepared, 0, sizeof(shard->prepared));
	shard->wait = CreateWaitEventSet(TopMemoryContext, 3);
	shard->busy = true;
	if (PQstatus(shard->connection) != CONNECTION_OK)
		fail(shard, NULL);
	AddWaitEventToSet(shard->wait, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(shard->wait, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(shard->wait, WL_SOCKET_READABLE, PQsocket(shard->connection), NULL, NULL);
	shard->busy = false;
}

/* Sends a statement with parameters of types whose binary form is their bytes. */
static void
send_statement(Shard *shard, Statement statement, int count, bytea *const *parameters)
{
	static const int formats[MOST_PARAMETERS] = {1, 1, 1, 1};
	const char *values[MOST_PARAMETERS];
	int			lengths[MOST_PARAMETERS];
	char		name[16];

	if (shard->connection == NULL)
		open_connection(shard);
	snprintf(name, sizeof(name), "s%d", statement);
	shard->busy = true;
	if (!shard->prepared[statement])
	{
		PGresult   *result = PQprepare(shard->connection, name, texts[statement], 0, NULL);

		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			fail(shard, result);
		PQclear(result);
		shard->prepared[statement] = true;
	}
	for (int i = 0; i < count; i++)
	{
		values[i] = VARDATA_ANY(parameters[i]);
		lengths[i] = VARSIZE_ANY_EXHDR(parameters[i]);
	}
	if (!PQsendQueryPrepared(shard->connection, name, count, values, lengths, formats, 1))
		fail(shard, NULL);
}

/* Waits for the answer and returns it. The caller clears it. */
static PGresult *
receive(Shard *shard)
{
	PGresult   *volatile result = NULL;

	PG_TRY();
	{
		for (;;)
		{
			PGresult   *next;

			while (PQisBusy(shard->connection))
			{
				WaitEvent	event;

				WaitEventSetWait(shard->wait, -1, &event, 1, PG_WAIT_EXTENSION);
				if (event.events & WL_LATCH_SET)
					ResetLatch(MyLatch);
				CHECK_FOR_INTERRUPTS();
				if ((event.events & WL_SOCKET_READABLE) && !PQconsumeInput(shard->connection))
					fail(shard, NULL);
			}
			if ((next = PQgetResult(shard->connection)) == NULL)
				break;
			PQclear(result);
			result = next;
		}
		shard->busy = false;
		if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		{
			PGresult   *failed = result;

			result = NULL;
			fail(shard, failed);
		}
	}
	PG_CATCH();
	{
		PQclear(result);
		abandon();
		PG_RE_THROW();
	}
	PG_END_TRY();
	return result;
}

static Datum
document(PGresult *result, int row)
{
	int			length = PQgetlength(result, row, 0);
	bytea	   *copy = palloc(VARHDRSZ + length);

	SET_VARSIZE(copy, VARHDRSZ + length);
	memcpy(VARDATA(copy), PQgetvalue(result, row, 0), length);
	return PointerGetDatum(copy);
}

/* point_find(recipient text, sent text) RETURNS jsonb */
PG_FUNCTION_INFO_V1(point_find);
Datum
point_find(PG_FUNCTION_ARGS)
{
	bytea	   *const parameters[] = {PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1)};
	Shard	   *shard = shard_of(parameters[0]);
	PGresult   *result;
	Datum		found = 0;

	send_statement(shard, POINT_FIND, 2, parameters);
	result = receive(shard);
	if (PQntuples(result) > 0)
		found = document(result, 0);
	else
		fcinfo->isnull = true;
	PQclear(result);
	return found;
}

/* Rows of several shards, each shard's in descending order of their second column. */
typedef struct Lists
{
	int			count;
	int			left;			/* rows to return at most */
	int			next[MOST_SHARDS];
	PGresult   *results[MOST_SHARDS];
	MemoryContextCallback callback;
} Lists;

static void
clear_lists(void *arg)
{
	Lists	   *lists = arg;

	for (int i = 0; i < lists->count; i++)
		PQclear(lists->results[i]);
}

/* True if the next row of one list precedes that of the other. `sent` always has the same length. */
static bool
comes_before(Lists *lists, int one, int other)
{
	return strcmp(PQgetvalue(lists->results[one], lists->next[one], 1),
				  PQgetvalue(lists->results[other], lists->next[other], 1)) > 0;
}

/* Returns the documents of the shards `first` to `last` for a statement with one parameter. */
static Datum
documents(FunctionCallInfo fcinfo, Statement statement, int first, int last)
{
	FuncCallContext *call;
	Lists	   *lists;
	int			best = -1;

	if (SRF_IS_FIRSTCALL())
	{
		bytea	   *parameter = PG_GETARG_TEXT_PP(0);

		call = SRF_FIRSTCALL_INIT();
		lists = MemoryContextAllocZero(call->multi_call_memory_ctx, sizeof(Lists));
		lists->left = LIMIT;
		lists->callback.func = clear_lists;
		lists->callback.arg = lists;
		MemoryContextRegisterResetCallback(call->multi_call_memory_ctx, &lists->callback);
		call->user_fctx = lists;
		for (int i = first; i <= last; i++)
			send_statement(&shards[i], statement, 1, &parameter);
		for (int i = first; i <= last; i++)
		{
			lists->results[lists->count] = receive(&shards[i]);
			lists->count++;
		}
	}
	call = SRF_PERCALL_SETUP();
	lists = call->user_fctx;
	for (int i = 0; i < lists->count; i++)
	{
		if (lists->next[i] < PQntuples(lists->results[i]) && (best < 0 || comes_before(lists, i, best)))
			best = i;
	}
	if (best < 0 || lists->left-- == 0)
		SRF_RETURN_DONE(call);
	SRF_RETURN_NEXT(call, document(lists->results[best], lists->next[best]++));
}

/* inbox_view(recipient text) RETURNS SETOF jsonb */
PG_FUNCTION_INFO_V1(inbox_view);
Datum
inbox_view(PG_FUNCTION_ARGS)
{
	int			shard = SRF_IS_FIRSTCALL() ? shard_of(PG_GETARG_TEXT_PP(0)) - shards : 0;

	return documents(fcinfo, INBOX_VIEW, shard, shard);
}

/* scatter(author text) RETURNS SETOF jsonb */
PG_FUNCTION_INFO_V1(scatter);
Datum
scatter(PG_FUNCTION_ARGS)
{
	return documents(fcinfo, SCATTER, 0, shards_known() - 1);
}

static int64
count_by(Statement statement)
{
	int64		sum = 0;

	for (int i = 0; i < shards_known(); i++)
		send_statement(&shards[i], statement, 0, NULL);
	for (int i = 0; i < shard_count; i++)
	{
		PGresult   *result = receive(&shards[i]);
		uint64		count;

		memcpy(&count, PQgetvalue(result, 0, 0), sizeof(count));
		sum += pg_ntoh64(count);
		PQclear(result);
	}
	return sum;
}

/* count_all() RETURNS int8 */
PG_FUNCTION_INFO_V1(count_all);
Datum
count_all(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(count_by(COUNT));
}

/* count_liked() RETURNS int8 */
PG_FUNCTION_INFO_V1(count_liked);
Datum
count_liked(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(count_by(FILTER_COUNT));
}

/* Runs a statement at one shard, as a transaction there; returns how many rows it has written. */
static Datum
write_at(Shard *shard, Statement statement, int count, bytea *const *parameters)
{
	PGresult   *result;
	int64		written;

	send_statement(shard, statement, count, parameters);
	result = receive(shard);
	written = strtoll(PQcmdTuples(result), NULL, 10);
	PQclear(result);
	return Int64GetDatum(written);
}

/* update_one(recipient text, sent text) RETURNS int8 */
PG_FUNCTION_INFO_V1(update_one);
Datum
update_one(PG_FUNCTION_ARGS)
{
	bytea	   *const parameters[] = {PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1)};

	return write_at(shard_of(parameters[0]), UPDATE, 2, parameters);
}

/* insert_one(recipient text, sent text, author text, doc jsonb) RETURNS int8 */
PG_FUNCTION_INFO_V1(insert_one);
Datum
insert_one(PG_FUNCTION_ARGS)
{
	bytea	   *const parameters[] = {
		PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1), PG_GETARG_TEXT_PP(2), PG_GETARG_BYTEA_PP(3)
	};

	return write_at(shard_of(parameters[0]), INSERT, 4, parameters);
}

/* shard_number(recipient text) RETURNS int4 */
PG_FUNCTION_INFO_V1(shard_number);
Datum
shard_number(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(shard_of(PG_GETARG_TEXT_PP(0)) - shards);
}

/* load(shard int4, docs bytea[]) RETURNS int4: starts to load documents; `loaded` waits. */
PG_FUNCTION_INFO_V1(load);
Datum
load(PG_FUNCTION_ARGS)
{
	int			shard = PG_GETARG_INT32(0);
	bytea	   *packed = OidSendFunctionCall(F_ARRAY_SEND, PG_GETARG_DATUM(1));

	if (shard < 0 || shard >= shards_known() || shards[shard].busy)
		ereport(ERROR, (errmsg("no shard %d to load", shard)));
	send_statement(&shards[shard], LOAD, 1, &packed);
	PG_RETURN_INT32(shard);
}

/* loaded(shards int4[]) RETURNS int8: waits until all started loads have ended. */
PG_FUNCTION_INFO_V1(loaded);
Datum
loaded(PG_FUNCTION_ARGS)
{
	int64		written = 0;

	for (int i = 0; i < shards_known(); i++)
	{
		if (shards[i].busy)
		{
			PGresult   *result = receive(&shards[i]);

			written += strtoll(PQcmdTuples(result), NULL, 10);
			PQclear(result);
		}
	}
	PG_RETURN_INT64(written);
}
