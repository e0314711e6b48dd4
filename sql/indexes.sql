-- The operator class of index entries, and the access method of unique indexes.

CREATE OPERATOR docshard_internal.@~ (
    LEFTARG = bytea[], RIGHTARG = bytea[], FUNCTION = docshard_internal.entries_meet, RESTRICT = contsel, JOIN = contjoinsel);
COMMENT ON OPERATOR docshard_internal.@~ (bytea[], bytea[]) IS 'an entry lies in a range';
CREATE OPERATOR CLASS docshard_internal.entry_ops FOR TYPE bytea[] USING gin AS
    OPERATOR 1 docshard_internal.@~ (bytea[], bytea[]),
    FUNCTION 1 pg_catalog.byteacmp(bytea, bytea),
    FUNCTION 2 pg_catalog.ginarrayextract(anyarray, internal, internal),
    FUNCTION 3 docshard_internal.entries_search(bytea[], internal, smallint, internal, internal, internal, internal),
    FUNCTION 4 docshard_internal.entries_met(internal, smallint, bytea[], int, internal, internal, internal, internal),
    FUNCTION 5 docshard_internal.entries_compare(bytea, bytea, smallint, internal),
    STORAGE bytea;

CREATE FUNCTION docshard_internal.unique_handler(internal) RETURNS index_am_handler
LANGUAGE c AS 'MODULE_PATHNAME', 'docshard_unique_handler';
CREATE ACCESS METHOD docshard_unique TYPE INDEX HANDLER docshard_internal.unique_handler;
COMMENT ON ACCESS METHOD docshard_unique IS 'docshard: several keys for each row, each of them unique';
CREATE OPERATOR CLASS docshard_internal.unique_ops FOR TYPE bytea USING docshard_unique AS
    OPERATOR 1 pg_catalog.< (bytea, bytea),
    OPERATOR 2 pg_catalog.<= (bytea, bytea),
    OPERATOR 3 pg_catalog.= (bytea, bytea),
    OPERATOR 4 pg_catalog.>= (bytea, bytea),
    OPERATOR 5 pg_catalog.> (bytea, bytea),
    FUNCTION 1 pg_catalog.byteacmp(bytea, bytea);
