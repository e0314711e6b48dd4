-- Views for the donor of a move, and the aggregate that updates the rows of a statement.

CREATE AGGREGATE docshard_internal.update_found(
  collection int, place tid, skey bytea, id bytea, doc jsonb, filter text, update text, fixed text[]
) (SFUNC = docshard_internal.update_next, STYPE = internal,
   FINALFUNC = docshard_internal.update_done, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE);

CREATE FUNCTION docshard_internal.capture_change() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'docshard_row_changed';
CREATE VIEW docshard_data.capture_changes AS
SELECT migration_id, seq, skey, id, docshard_internal.current_document(collection_id, skey, id) AS doc
  FROM docshard_data.capture_log;
COMMENT ON VIEW docshard_data.capture_changes IS 'Keys that changed in a captured range, with their current documents; null if there is none';

CREATE VIEW docshard_data.capture_packed AS
SELECT migration_id, part, documents, packed
  FROM docshard_data.capture_parts, LATERAL docshard_internal.pack_part(collection_id, skey, id, next_skey, next_id);
COMMENT ON VIEW docshard_data.capture_packed IS 'The current documents of a captured range, part by part, packed';
