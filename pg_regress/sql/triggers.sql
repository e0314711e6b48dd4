-- A user's triggers on a collection's table fire as for PostgreSQL's own statements.
SELECT docshard.insert_one('triggers.c', '{"_id": 1, "n": 0}') -> 'insertedId' AS id;
SELECT "table" AS documents FROM docshard.collections WHERE namespace = 'triggers.c' \gset
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE NOTICE '% % % %', TG_WHEN, TG_OP, TG_LEVEL, coalesce(NEW.doc -> 'n', OLD.doc -> 'n');
  RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER a BEFORE INSERT OR UPDATE OR DELETE ON :documents FOR EACH STATEMENT EXECUTE FUNCTION tell();
CREATE TRIGGER b AFTER INSERT OR UPDATE OR DELETE ON :documents FOR EACH STATEMENT EXECUTE FUNCTION tell();
CREATE TRIGGER c AFTER INSERT OR UPDATE OR DELETE ON :documents FOR EACH ROW EXECUTE FUNCTION tell();
SELECT docshard.insert_one('triggers.c', '{"_id": 2, "n": 2}') -> 'insertedId' AS id;
SELECT docshard.insert_many('triggers.c', '{"{\"_id\": 3, \"n\": 3}", "{\"_id\": 4, \"n\": 4}"}') -> 'insertedCount' AS inserted;
SELECT docshard.update_one('triggers.c', '{"_id": 3}', '{"$inc": {"n": 10}}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_one('triggers.c', '{"_id": 3}') -> 'deletedCount' AS deleted;
DROP TRIGGER b ON :documents;
DROP TRIGGER c ON :documents;
-- A trigger before each row may change the row, or skip it.
CREATE FUNCTION halve() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.doc @> '{"n": 0}' THEN RETURN NULL; END IF;
  NEW.doc := jsonb_set(NEW.doc, '{n}', to_jsonb((NEW.doc ->> 'n')::int / 2));
  RETURN NEW;
END $$;
CREATE TRIGGER d BEFORE INSERT OR UPDATE ON :documents FOR EACH ROW EXECUTE FUNCTION halve();
SELECT docshard.insert_many('triggers.c', '{"{\"_id\": 5, \"n\": 100}", "{\"_id\": 6, \"n\": 0}"}') IS NOT NULL AS done;
SELECT docshard.find('triggers.c', '{"_id": {"$gte": 5}}');
SELECT docshard.drop_database('triggers') IS NOT NULL AS dropped;
DROP FUNCTION tell, halve;
