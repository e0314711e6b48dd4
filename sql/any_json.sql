-- The type of arguments that are JSON of any type: docshard.any_json, with implicit casts from json, jsonb, text and varchar.
--
-- Each function with json arguments has a second form, with any_json in their place and varchar for text. Literals and parameters
-- without a type choose the first one, as PostgreSQL prefers text to varchar: they stay json, and drivers that ask for the types of
-- parameters see what they saw before. A call with jsonb fits the second form only. sql/privileges.sql makes these forms.
--
-- A value is JSON text, as json is, so that the cast from json costs nothing. jsonb has lost the order of fields. Its cast puts white
-- space before the text by which functions know that (src/pg/datum/json.rs): they refuse an order of several fields.

CREATE TYPE docshard.any_json;
CREATE FUNCTION docshard_internal.any_json_in(cstring) RETURNS docshard.any_json
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_in';
CREATE FUNCTION docshard_internal.any_json_out(docshard.any_json) RETURNS cstring
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_out';
CREATE FUNCTION docshard_internal.any_json_receive(internal) RETURNS docshard.any_json
    STABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_recv';
CREATE FUNCTION docshard_internal.any_json_send(docshard.any_json) RETURNS bytea
    STABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_send';
CREATE TYPE docshard.any_json (
    INPUT = docshard_internal.any_json_in,
    OUTPUT = docshard_internal.any_json_out,
    RECEIVE = docshard_internal.any_json_receive,
    SEND = docshard_internal.any_json_send,
    LIKE = pg_catalog.json
);
COMMENT ON TYPE docshard.any_json IS 'An argument of docshard''s functions: json, jsonb or text';

CREATE CAST (pg_catalog.json AS docshard.any_json) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION docshard_internal.any_json(jsonb) RETURNS docshard.any_json IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (E'\t\r\t\r'::pg_catalog.text OPERATOR(pg_catalog.||) $1::pg_catalog.text)::pg_catalog.json::docshard.any_json;
CREATE CAST (pg_catalog.jsonb AS docshard.any_json) WITH FUNCTION docshard_internal.any_json(jsonb) AS IMPLICIT;
CREATE CAST (pg_catalog.text AS docshard.any_json) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.varchar AS docshard.any_json) WITH INOUT AS IMPLICIT;
