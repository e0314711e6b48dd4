-- Who may do what. Nobody but superusers may use the schemas until docshard.grant_access(role) says so; then the role
-- may work with documents and look at the cluster, and administration stays out of its reach.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA docshard, docshard_internal FROM PUBLIC;

DO $$
DECLARE
    -- Documents, and looking: they run as the caller, with the caller's privileges on the tables of documents.
    open_to_all CONSTANT text[] := ARRAY[
        'insert_one', 'insert_many', 'insert_select', 'find', 'find_one', 'count_documents', 'estimated_document_count', 'distinct',
        'explain', 'run_command', 'update_one', 'update_many', 'replace_one', 'delete_one', 'delete_many',
        'bulk_write', 'find_one_and_update', 'find_one_and_replace', 'find_one_and_delete', 'find_and_modify',
        'list_shards', 'list_indexes', 'list_index_builds', 'index_stats', 'list_settings', 'balancer_status'];
    -- What the statements of such a caller call at a shard.
    open_at_shards CONSTANT text[] := ARRAY[
        'at_version', 'by_index', 'steers', 'count_all', 'count_matching', 'find_document', 'find_few', 'lock_and_check', 'insert_documents', 'taken', 'update_document', 'update_found', 'put_document', 'may_update', 'delete_document', 'matches', 'project',
        'sort_key', 'sort_field_key', 'index_key', 'index_types', 'restored', 'unique_keys', 'check_index_key', 'has_index_entries', 'index_entries', 'entries_meet', 'key_within', 'key_field_within',
        'apply_update', 'moves', 'lock_upsert', 'distinct_values', 'pack', 'unpack', 'is_document', 'bound_json', 'list_settings',
        'config_date', 'config_timestamp', 'config_object_id', 'collection_uuid'];
    function regprocedure;
BEGIN
    FOR function IN
        SELECT p.oid FROM pg_catalog.pg_proc p
         WHERE (p.pronamespace = 'docshard'::regnamespace AND p.proname = ANY (open_to_all))
            OR (p.pronamespace = 'docshard_internal'::regnamespace AND p.proname = ANY (open_at_shards))
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', function);
    END LOOP;
END $$;

GRANT SELECT ON ALL TABLES IN SCHEMA docshard TO PUBLIC;
-- Whose shard a database is: every function that belongs to a router looks.
GRANT SELECT ON docshard_data.node TO PUBLIC;
