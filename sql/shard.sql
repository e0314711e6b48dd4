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
  FROM docshard_data.capture_parts, LATERAL (
       SELECT p.documents, p.packed FROM docshard_internal.pack_part(collection_id, skey, id, next_skey, next_id) AS p
        WHERE target_key IS NULL
       UNION ALL
       SELECT p.documents, p.packed
         FROM docshard_internal.pack_share(collection_id, skey, id, next_skey, next_id, target_key, target_share) AS p
        WHERE target_key IS NOT NULL) AS packed;
COMMENT ON VIEW docshard_data.capture_packed IS 'The current documents of a captured range, part by part, packed';

-- TRUNCATE calls no event trigger. Each of docshard's own tables has a trigger of its own for it.
DO $$
DECLARE
    own record;
BEGIN
    FOR own IN SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'
                WHERE c.relkind = 'r' AND n.nspname IN ('docshard_catalog', 'docshard_data') ORDER BY c.oid
    LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I.%I EXECUTE FUNCTION docshard_internal.capture_change()',
                                  own.nspname, own.relname);
        EXECUTE pg_catalog.format('ALTER TABLE %I.%I ENABLE ALWAYS TRIGGER refuse_truncate', own.nspname, own.relname);
    END LOOP;
END $$;
