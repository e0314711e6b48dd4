-- The conditions of a view with security_barrier, wherever they stand in its definition, hide rows with values that do not fit from the
-- view's readers.
SELECT docshard.insert_many('fb.c', ARRAY['{"_id": 1, "v": [1]}', '{"_id": 2, "v": [2]}', '{"_id": 3, "v": 3}', '{"_id": 4, "v": 4}', '{"_id": 5, "v": 50}', '{"_id": "x", "v": 6}', '{"_id": 7, "v": 7, "ok": true}', '{"_id": 8, "v": "8", "ok": [true]}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE SCHEMA fb;
CREATE SCHEMA fp;
CREATE FOREIGN TABLE fb.c (_id int, v int, ok boolean) SERVER docshard OPTIONS (namespace 'fb.c');
CREATE TABLE fb.l AS SELECT k FROM generate_series(1, 9) k;
-- The same as plain tables, where NULL stands for a value that does not fit: a condition is not true for it either.
CREATE TABLE fp.c (_id int, v int, ok boolean);
INSERT INTO fp.c VALUES (1, NULL, NULL), (2, NULL, NULL), (3, 3, NULL), (4, 4, NULL), (5, 50, NULL), (NULL, 6, NULL), (7, 7, true), (8, NULL, NULL);
CREATE TABLE fp.l AS TABLE fb.l;
ANALYZE fb.l;
ANALYZE fp.l;
CREATE ROLE regress_docshard_fb;
GRANT USAGE ON SCHEMA fb, fp TO regress_docshard_fb;
CREATE FUNCTION fb.small(n int) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN n < 10;
-- What the reader of a view sees by each kind of join. If the same view of plain tables shows something else, both.
CREATE FUNCTION fb.seen(definition text, statement text DEFAULT 'SELECT * FROM w') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  side text;
  off text;
  found text;
  plain text[];
  seen text[];
BEGIN
  FOREACH side IN ARRAY ARRAY['fp', 'fb'] LOOP
    PERFORM set_config('search_path', side || ', public', true);
    EXECUTE 'CREATE VIEW w WITH (security_barrier) AS ' || definition;
    GRANT SELECT ON w TO regress_docshard_fb;
    SET LOCAL ROLE regress_docshard_fb;
    FOREACH off IN ARRAY ARRAY['hashjoin', 'mergejoin', 'nestloop'] LOOP
      PERFORM set_config('enable_' || off, 'off', true);
      BEGIN
        EXECUTE format('SELECT string_agg(t::text, '' '' ORDER BY t) FROM (%s) t', statement) INTO found;
      EXCEPTION WHEN OTHERS THEN
        found := sqlstate || ' ' || replace(sqlerrm, ' of the foreign table "c"', '');
      END;
      PERFORM set_config('enable_' || off, 'on', true);
      IF seen IS NULL OR found <> ALL (seen) THEN
        seen := seen || found;
      END IF;
    END LOOP;
    RESET ROLE;
    EXECUTE 'DROP VIEW w';
    IF side = 'fp' THEN
      plain := seen;
      seen := NULL;
    END IF;
  END LOOP;
  RETURN CASE WHEN plain = seen AND cardinality(seen) = 1 THEN seen[1] ELSE format('plain: %s; foreign: %s', plain, seen) END;
END $$;
SELECT fb.seen('SELECT l.k, c.v FROM l JOIN c ON c._id = l.k AND c.v < 10');
SELECT fb.seen('SELECT l.k, c.v FROM l JOIN c ON c._id = l.k WHERE c.v < 10');
SELECT fb.seen('SELECT l.k, c.v FROM l, c WHERE c._id = l.k AND NOT (c.v >= 10 OR c.v < 0)');
SELECT fb.seen('SELECT l.k, c.v FROM l LEFT JOIN c ON c._id = l.k AND c.v < 10');
SELECT fb.seen('SELECT l.k, c.v FROM c RIGHT JOIN l ON c._id = l.k AND c.v < 10', 'SELECT * FROM w WHERE v = 3');
SELECT fb.seen('SELECT l.k, c.v FROM l JOIN c ON c._id = l.k AND c.ok');
SELECT fb.seen('SELECT l.k, c.v FROM l JOIN c ON c._id = l.k AND (c.ok = true OR c.v = 4)');
SELECT fb.seen('SELECT l.k, c.v FROM l JOIN c ON c._id = l.k AND c.v = 3', 'SELECT * FROM w WHERE v = 3 AND k = 3');
SELECT fb.seen('SELECT l.k, c.v FROM l JOIN c ON c._id = l.k AND fb.small(c.v)', 'SELECT * FROM w WHERE k > 3');
SELECT fb.seen('SELECT _id, v FROM c WHERE fb.small(v)', 'SELECT v FROM w WHERE v > 3');
-- A condition of a left join's ON selects no rows of the left table. But this table is joined, so its values that do not fit hide rows, too.
-- A condition of a full join selects none, nor one that is true for NULLs of a left join: a value that does not fit stays an error.
SELECT fb.seen('SELECT c._id, l.k FROM c LEFT JOIN l ON l.k = c._id AND c.v < 10');
SELECT fb.seen('SELECT c._id, l.k FROM c LEFT JOIN l ON l.k = c._id WHERE c.v < 5');
SELECT fb.seen('SELECT c.v, l.k FROM c FULL JOIN l ON l.k = c._id AND c.v < 10');
SELECT fb.seen('SELECT l.k, c.v FROM l LEFT JOIN c ON c._id = l.k WHERE c.v < 10 OR c.v IS NULL');
-- Conditions of sub-queries, which the planner pulls up or plans apart.
SELECT fb.seen('SELECT l.k, s.v FROM l JOIN (SELECT _id, v FROM c WHERE v < 10) s ON s._id = l.k');
SELECT fb.seen('SELECT l.k, s.v FROM l LEFT JOIN (SELECT _id, v FROM c WHERE v < 10) s ON s._id = l.k AND s.v > 3', 'SELECT * FROM w WHERE k < 6');
SELECT fb.seen('SELECT l.k, s.v FROM l JOIN (SELECT _id, v FROM c WHERE v < 10 AND _id > 0 OFFSET 0) s ON s._id = l.k', 'SELECT * FROM w WHERE k > 3');
SELECT fb.seen('SELECT l.k, s.v FROM l JOIN (SELECT _id, max(v) AS v FROM c WHERE v < 10 GROUP BY _id HAVING _id > 2) s ON s._id = l.k');
SELECT fb.seen('SELECT l.k, s.n FROM l JOIN (SELECT v, count(*) AS n FROM c GROUP BY v) s ON s.v = l.k AND s.v < 10');
SELECT fb.seen('SELECT v FROM (SELECT DISTINCT v FROM c) s WHERE v < 10');
SELECT fb.seen('SELECT v FROM c WHERE v < 5 UNION ALL SELECT v FROM c WHERE v > 6 AND v < 10', 'SELECT * FROM w WHERE v > 3');
SELECT fb.seen('WITH s AS (SELECT * FROM c WHERE v < 10), t AS MATERIALIZED (SELECT * FROM c WHERE v < 5) SELECT s.v FROM s JOIN t ON s.v = t.v');
SELECT fb.seen('SELECT l.k, s.v FROM l, LATERAL (SELECT v FROM c WHERE c._id = l.k AND c.v < 10 LIMIT 1) s');
SELECT fb.seen('SELECT a.v, b.v AS w FROM c a JOIN c b ON a._id = b._id AND a.v < 10 AND b.v > 3');
SELECT fb.seen('SELECT l.k FROM l WHERE EXISTS (SELECT FROM c WHERE c._id = l.k AND c.v < 10)');
SELECT fb.seen('SELECT l.k FROM l WHERE l.k IN (SELECT c.v FROM c WHERE c.v < 10)', 'SELECT * FROM w WHERE k < 5');
-- Where a hidden row would make another one visible, the value stays an error.
SELECT fb.seen('SELECT l.k FROM l WHERE NOT EXISTS (SELECT FROM c WHERE c._id = l.k AND c.v < 10)');
SELECT fb.seen('SELECT l.k FROM l LEFT JOIN c ON c._id = l.k AND c.v < 10 WHERE c._id IS NULL');
SELECT fb.seen('SELECT l.k FROM l WHERE l.k NOT IN (SELECT c.v FROM c WHERE c.v < 10)');
SELECT fb.seen('SELECT k FROM l EXCEPT SELECT v FROM c WHERE v < 10');
-- So it does in a query that is planned apart: of WITH, wherever it is referred to, and on the nullable side of a join.
SELECT fb.seen('WITH x AS MATERIALIZED (SELECT _id, v FROM c WHERE v < 10 AND _id > 0) SELECT k FROM l WHERE NOT EXISTS (SELECT FROM x WHERE x._id = l.k)');
SELECT fb.seen('WITH x AS MATERIALIZED (SELECT _id, v FROM c WHERE v < 10 AND _id > 0) SELECT k FROM l WHERE k NOT IN (SELECT v FROM x)');
SELECT fb.seen('WITH x AS MATERIALIZED (SELECT _id, v FROM c WHERE v < 10 AND _id > 0), y AS MATERIALIZED (SELECT * FROM x WHERE v > 0) SELECT * FROM (SELECT k FROM l EXCEPT SELECT v FROM y) z');
SELECT fb.seen('WITH x AS MATERIALIZED (SELECT _id, v FROM c WHERE v < 10 AND _id > 0) SELECT k, (SELECT count(*) FROM x WHERE x._id = k) FROM l');
SELECT fb.seen('WITH x AS MATERIALIZED (SELECT _id, v FROM c WHERE v < 10 AND _id > 0) SELECT k FROM l LEFT JOIN x ON x._id = k WHERE x._id IS NULL');
SELECT fb.seen('WITH RECURSIVE y AS (SELECT k FROM l WHERE k NOT IN (SELECT v FROM x)), x AS (SELECT v FROM c WHERE v < 10 AND _id > 0) SELECT * FROM y UNION ALL SELECT v FROM x');
SELECT fb.seen('SELECT k FROM l LEFT JOIN (SELECT _id FROM c WHERE v < 10 AND _id > 0 OFFSET 0) x ON x._id = k WHERE x._id IS NULL');
SELECT fb.seen('SELECT k FROM (SELECT _id FROM c WHERE v < 10 AND _id > 0 GROUP BY _id) x RIGHT JOIN l ON x._id = k WHERE x._id IS NULL');
SELECT fb.seen('SELECT k FROM l LEFT JOIN LATERAL (SELECT _id FROM c WHERE v < 10 AND _id = k LIMIT 1) x ON true WHERE x._id IS NULL');
SELECT fb.seen('SELECT l.k FROM l LEFT JOIN (l m JOIN (SELECT DISTINCT _id FROM c WHERE v < 10 AND _id > 0) x ON x._id = m.k) ON x._id = l.k WHERE m.k IS NULL');
SELECT fb.seen('SELECT k FROM l LEFT JOIN (SELECT _id FROM c WHERE v < 5 UNION SELECT _id FROM c WHERE v > 6 AND v < 10) x ON x._id = k WHERE x._id IS NULL');
-- Partitions and children, whose columns have other numbers than those of their parents.
SET default_tablespace = '';
CREATE TABLE fb.pt (_id int, v int) PARTITION BY LIST (_id);
CREATE FOREIGN TABLE fb.part (ok boolean, v int, _id int) SERVER docshard OPTIONS (namespace 'fb.c');
ALTER FOREIGN TABLE fb.part DROP COLUMN ok;
ALTER TABLE fb.pt ATTACH PARTITION fb.part DEFAULT;
CREATE TABLE fp.pt (_id int, v int) PARTITION BY LIST (_id);
CREATE TABLE fp.part PARTITION OF fp.pt DEFAULT;
RESET default_tablespace;
INSERT INTO fp.pt SELECT _id, v FROM fp.c;
SELECT fb.seen('SELECT l.k, pt.v FROM l JOIN pt ON l.k = pt.v');
SELECT fb.seen('SELECT l.k, pt.v FROM l JOIN pt ON l.k = pt.v AND l.k = 3');
SELECT fb.seen('SELECT pt.v FROM pt WHERE pt.v = 3');
SELECT fb.seen('SELECT l.k FROM l WHERE NOT EXISTS (SELECT FROM pt WHERE pt._id = l.k AND pt.v < 10)');
-- Two views in one statement, a view of another one, and what a reader adds.
SELECT fb.seen('SELECT _id, v FROM c WHERE v < 5', 'SELECT a.v FROM w a JOIN w b ON a._id = b._id AND b.v > 3');
SELECT fb.seen('SELECT _id, v, v < 5 AS low FROM c WHERE v < 10', 'SELECT v FROM w WHERE NOT low AND v > 0');
-- Conditions that count as those of a reader of what is below: of a view over another view with security_barrier, where all values that do
-- not fit hide rows, and on an expression of a sub-query, which hides nothing.
CREATE VIEW fb.b WITH (security_barrier) AS SELECT * FROM fb.c WHERE _id > 0;
CREATE VIEW fp.b WITH (security_barrier) AS SELECT * FROM fp.c WHERE _id > 0;
SELECT fb.seen('SELECT v FROM b WHERE v < 10');
SELECT fb.seen('SELECT v FROM (SELECT v, v < 10 AS small FROM c) s WHERE small');
-- A view that omits rows above the scan: by a join, or by another view. Its reader does not notice the values of these rows, here of 2 and 3.
-- A row that does not fit is omitted, also if the view has it, as 5. The plain table is without it.
SELECT docshard.insert_many('fb.h', ARRAY['{"_id": 1, "w": 5, "g": 1}', '{"_id": 2, "w": [7, 1234], "g": 2}', '{"_id": 3, "w": "secret", "g": 3}', '{"_id": 4, "w": 9, "g": 1}', '{"_id": 5, "w": "x", "g": 1}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fb.h (_id int, w int, g int) SERVER docshard OPTIONS (namespace 'fb.h');
CREATE TABLE fp.h (_id int, w int, g int);
INSERT INTO fp.h VALUES (1, 5, 1), (2, NULL, 2), (3, NULL, 3), (4, 9, 1);
CREATE TABLE fb.a AS SELECT n AS doc FROM unnest('{1,4,5}'::int[]) n;
CREATE TABLE fp.a AS TABLE fb.a;
ANALYZE fb.a;
ANALYZE fp.a;
CREATE FUNCTION fb.read_all(definition text) RETURNS TABLE (statement text, seen text) LANGUAGE sql AS $$
  SELECT statement, regexp_replace(fb.seen(definition, statement), 'of type [a-z]+', 'of a type', 'g') FROM unnest(ARRAY['SELECT * FROM w', 'SELECT _id FROM w WHERE w = 1234 OR _id > 6', 'SELECT _id FROM w WHERE w > 6',
    'SELECT _id FROM w WHERE w <> 0 AND _id = 3', 'SELECT count(w) FROM w WHERE g = 3', 'SELECT _id FROM w WHERE g = 2 AND w IS NOT NULL']) statement $$;
SELECT * FROM fb.read_all('SELECT h.* FROM h JOIN a ON doc = _id');
SELECT * FROM fb.read_all('SELECT h.* FROM h WHERE EXISTS (SELECT FROM a WHERE doc = _id)');
SELECT * FROM fb.read_all('SELECT h.* FROM h WHERE _id IN (SELECT doc FROM a)');
SELECT * FROM fb.read_all('SELECT h.* FROM h LEFT JOIN a ON doc = _id WHERE doc > 0');
SELECT * FROM fb.read_all('SELECT h.* FROM a, LATERAL (SELECT * FROM h WHERE _id = doc) h');
SELECT * FROM fb.read_all('SELECT s.* FROM (SELECT DISTINCT * FROM h) s JOIN a ON doc = _id');
SELECT * FROM fb.read_all('SELECT h.* FROM h, h AS i WHERE i._id = h._id AND i.g = 1');
-- If the absence of a row can show another one, the value is an error, whatever the reader asks for.
SELECT * FROM fb.read_all('SELECT h.* FROM h ORDER BY w LIMIT 1');
SELECT * FROM fb.read_all('SELECT * FROM (SELECT h.*, row_number() OVER (PARTITION BY g ORDER BY _id DESC) AS n FROM h) s WHERE g = n');
SELECT * FROM fb.read_all('SELECT min(_id) AS _id, max(w) AS w, g FROM h GROUP BY g HAVING count(*) = 2');
SELECT fb.seen('SELECT doc, s.w FROM a LEFT JOIN (SELECT DISTINCT _id, w FROM h) s ON _id = doc WHERE doc < 4', 'SELECT * FROM w WHERE w > 6');
-- A view of one table, and a condition that its scan evaluates: the values of the rows that it has are errors, and no others.
SELECT fb.seen('SELECT * FROM h WHERE _id = ANY (ARRAY(SELECT doc FROM a))', 'SELECT _id FROM w WHERE w > 6');
SELECT fb.seen('SELECT * FROM h WHERE g = 2', 'SELECT _id FROM w WHERE w = 1234');
SELECT fb.seen('SELECT * FROM h WHERE g = 1 AND _id < 5', 'SELECT _id FROM w WHERE w > 6');
-- An UPDATE leaves what its view's reader does not see.
CREATE VIEW fb.u WITH (security_barrier) AS SELECT * FROM fb.h WHERE EXISTS (SELECT FROM fb.a WHERE doc = _id);
GRANT ALL ON fb.u TO regress_docshard_fb;
SET ROLE regress_docshard_fb;
UPDATE fb.u SET w = w + 1 WHERE w > 4 AND _id < 5 RETURNING _id, w;
UPDATE fb.u SET w = 0 WHERE w = 1234 AND _id < 5;
DELETE FROM fb.u WHERE (w = 1234 OR _id = 3) AND _id < 5;
DELETE FROM fb.u WHERE w = 1234;
RESET ROLE;
-- Below any view, a condition that is evaluated here could be true for a value that does not fit. So the value is an error if the row passes
-- the conditions on other columns.
CREATE VIEW fb.plain AS SELECT * FROM fb.h;
GRANT ALL ON fb.plain TO regress_docshard_fb;
SET ROLE regress_docshard_fb;
SELECT count(*) FROM fb.plain WHERE abs(w) < 100;
SELECT count(*) FROM fb.plain WHERE coalesce(w, 0) < 100 AND g % 4 = 3;
SELECT count(*) FROM fb.plain WHERE abs(w) < 100 AND _id + 0 IN (1, 4);
SELECT count(*) FROM fb.plain WHERE abs(w) < 100 AND g % 4 > 3;
SELECT _id FROM fb.plain p WHERE NOT EXISTS (SELECT FROM fb.plain q WHERE q._id = p._id AND abs(q.w) < 100);
DELETE FROM fb.plain WHERE abs(w) < 100;
DELETE FROM fb.plain WHERE abs(w) < 100 AND g % 4 > 3;
RESET ROLE;
-- Only the view's own conditions go to the shards, if one of them is evaluated at the router.
CREATE VIEW fb.w WITH (security_barrier) AS SELECT l.k, s.v FROM fb.l JOIN (SELECT _id, v FROM fb.c WHERE v % 2 = 1) s ON s._id = l.k AND s.v < 10;
CREATE VIEW fb.o WITH (security_barrier) AS SELECT * FROM fb.w WHERE v > 3;
-- One way to join, and the scans in one order, whatever the sizes are that have been measured meanwhile.
CREATE FUNCTION fb.filters(query text) RETURNS SETOF text LANGUAGE plpgsql SET search_path = fb AS $$
DECLARE line text; filters text[] := '{}';
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    IF line ~ 'Foreign Scan' THEN filters := filters || ''::text; END IF;
    IF line ~ 'Filter' THEN filters[cardinality(filters)] := filters[cardinality(filters)] || trim(line) || ' '; END IF;
  END LOOP;
  RETURN QUERY SELECT one FROM unnest(filters) one ORDER BY one COLLATE "C";
END $$;
SET enable_nestloop = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SELECT fb.filters('SELECT * FROM w WHERE v <> 7');
SELECT fb.filters('SELECT * FROM o WHERE v <> 7');
SELECT fb.filters('SELECT * FROM w a, o b WHERE a.v = 7 AND b.v = 7');
SELECT fb.filters('SELECT * FROM (SELECT _id, v FROM c WHERE v % 2 = 1) s, w WHERE s.v < 9');
RESET enable_nestloop;
RESET enable_hashjoin;
RESET enable_mergejoin;
-- EXPLAIN does not count the rows that are hidden, of which the reader's condition could be true.
CREATE VIEW fb.low WITH (security_barrier) AS SELECT _id, v FROM fb.c WHERE v < 10;
GRANT SELECT ON fb.low TO regress_docshard_fb;
SET ROLE regress_docshard_fb;
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) SELECT * FROM fb.low WHERE _id = 2;
-- PostgreSQL inlines this function after the conditions of views were marked.
CREATE FUNCTION pg_temp.low() RETURNS SETOF fb.low LANGUAGE sql STABLE AS 'SELECT * FROM fb.low';
SELECT v FROM pg_temp.low();
RESET ROLE;
GRANT SELECT ON fb.w TO regress_docshard_fb;
SET ROLE regress_docshard_fb;
PREPARE named (int) AS SELECT * FROM fb.w WHERE v > $1;
SET plan_cache_mode = force_generic_plan;
EXECUTE named(2);
EXECUTE named(4);
RESET plan_cache_mode;
DEALLOCATE named;
RESET ROLE;
DROP OWNED BY regress_docshard_fb;
DROP ROLE regress_docshard_fb;
SET client_min_messages = warning;
DROP SCHEMA fb, fp CASCADE;
SELECT docshard.drop_database('fb');
