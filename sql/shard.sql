-- Views for the donor of a move, the aggregate that updates the rows of a statement, and what a dump has of the order of fields.

CREATE AGGREGATE docshard_internal.update_found(
  collection int, place tid, skey bytea, id bytea, doc jsonb, filter text, update text, fixed text[]
) (SFUNC = docshard_internal.update_next, STYPE = internal,
   FINALFUNC = docshard_internal.update_done, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE);

CREATE FUNCTION docshard_internal.capture_change() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'docshard_row_changed';
CREATE VIEW docshard_data.capture_changes AS
SELECT l.migration_id, l.seq, l.skey, l.id, d.doc, docshard_internal.detach_order(d.doc) AS field_order
  FROM docshard_data.capture_log l,
       LATERAL (SELECT docshard_internal.current_document(l.collection_id, l.skey, l.id) AS doc OFFSET 0) AS d;
COMMENT ON VIEW docshard_data.capture_changes IS 'Keys that changed in a captured range, with their current documents; null if there is none';

CREATE VIEW docshard_data.capture_packed AS
SELECT migration_id, part, documents, packed
  FROM docshard_data.capture_parts, LATERAL (
       SELECT p.documents, p.packed FROM docshard_internal.pack_part(collection_id, skey, id, next_skey, next_id) AS p
        WHERE target_key IS NULL
       UNION ALL
       SELECT p.documents, p.packed
         FROM docshard_internal.pack_share(collection_id, file, place, next_place, target_key, target_share) AS p
        WHERE target_key IS NOT NULL) AS packed;
COMMENT ON VIEW docshard_data.capture_packed IS 'The current documents of a captured range, part by part, packed';

-- A dump has documents as text, which has no order of fields. Instead of the rows of `field_orders`, which has none, a dump has what
-- `field_orders()` returns. When they are restored, after the documents, the documents get the order again.
CREATE FUNCTION docshard_internal.field_orders()
RETURNS TABLE (collection_id int, skey bytea, id bytea, field_order bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE number text;
BEGIN
    FOR number IN SELECT pg_catalog.substr(c.relname, 2) FROM pg_catalog.pg_class c
                   WHERE c.relnamespace = 'docshard_data'::pg_catalog.regnamespace AND c.relkind = 'r' AND c.relname ~ '^c[0-9]{1,9}$'
                   ORDER BY c.oid
    LOOP
        RETURN QUERY EXECUTE pg_catalog.format(
            'SELECT %s, d.skey, d.id, d.detached FROM (SELECT t.skey, t.id, docshard_internal.detach_order(t.doc) AS detached '
            'FROM ONLY docshard_data.c%s t OFFSET 0) AS d WHERE d.detached IS NOT NULL', number, number);
    END LOOP;
END $$;
CREATE FUNCTION docshard_internal.restore_field_orders() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE number int;
BEGIN
    FOR number IN SELECT DISTINCT r.collection_id FROM restored r
                   WHERE pg_catalog.to_regclass('docshard_data.c' || r.collection_id) IS NOT NULL
    LOOP
        EXECUTE pg_catalog.format(
            'UPDATE ONLY docshard_data.c%s t SET doc = docshard_internal.attach_order(t.doc, r.field_order) '
            'FROM restored r WHERE r.collection_id = %s AND (t.skey, t.id) = (r.skey, r.id)', number, number);
    END LOOP;
    DELETE FROM docshard_data.field_orders;
    RETURN NULL;
END $$;
CREATE TRIGGER restore_field_orders AFTER INSERT ON docshard_data.field_orders
    REFERENCING NEW TABLE AS restored FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.restore_field_orders();
SELECT pg_catalog.pg_extension_config_dump('docshard_data.field_orders',
    'WHERE false UNION ALL SELECT f.* FROM docshard_internal.field_orders() AS f');

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
