//! Compares pipelines over real documents with SQL over the same documents in a plain table: five pipelines for each data set.

use docshard_tests::{Cluster, docs, shared_data};
use postgres::Client;
use serde_json::{Value, json};

/// A data set, its shard key, and its pipelines, each with SQL that returns the same. The SQL reads the documents `d` of the table
/// `plain`, and returns rows of one jsonb. `num` converts a number in any form of Extended JSON.
struct Set {
    file: &'static str,
    shard_key: &'static str,
    pipelines: [(&'static str, &'static str); 5],
}

const SETS: &[Set] = &[
    Set {
        file: "accounts",
        shard_key: r#"{"account_id": "hashed"}"#,
        pipelines: [
            (
                r#"[{"$unwind": "$products"}, {"$group": {"_id": "$products", "n": {"$sum": 1}, "limit": {"$avg": "$limit"}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', p, 'n', count(*), 'limit', avg(num(d->'limit'))) FROM plain, jsonb_array_elements_text(d->'products') p
                   GROUP BY p ORDER BY p COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": "$limit", "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 3}]"#,
                "SELECT jsonb_build_object('_id', num(d->'limit'), 'n', count(*)) FROM plain GROUP BY num(d->'limit') ORDER BY count(*) DESC, 1 LIMIT 3",
            ),
            (
                r#"[{"$bucket": {"groupBy": {"$size": "$products"}, "boundaries": [1, 2, 4, 10], "output": {"n": {"$sum": 1}, "least": {"$min": "$limit"}}}}]"#,
                "SELECT jsonb_build_object('_id', CASE WHEN s < 2 THEN 1 WHEN s < 4 THEN 2 ELSE 4 END, 'n', count(*), 'least', min(num(d->'limit')))
                 FROM plain, jsonb_array_length(d->'products') s GROUP BY CASE WHEN s < 2 THEN 1 WHEN s < 4 THEN 2 ELSE 4 END ORDER BY min(s)",
            ),
            (
                r#"[{"$setWindowFields": {"partitionBy": {"$size": "$products"}, "sortBy": {"account_id": 1},
                    "output": {"r": {"$rank": {}}, "before": {"$shift": {"output": "$account_id", "by": -1, "default": 0}}}}},
                   {"$match": {"r": {"$lte": 3}}}, {"$sort": {"account_id": 1}}, {"$project": {"_id": 0, "account_id": 1, "r": 1, "before": 1}}]"#,
                "SELECT jsonb_build_object('account_id', a, 'r', r, 'before', b) FROM
                   (SELECT num(d->'account_id') a, rank() OVER w r, lag(num(d->'account_id'), 1, 0) OVER w b FROM plain
                    WINDOW w AS (PARTITION BY jsonb_array_length(d->'products') ORDER BY num(d->'account_id'))) AS f WHERE r <= 3 ORDER BY a",
            ),
            (
                r#"[{"$facet": {"low": [{"$match": {"limit": {"$lt": 9000}}}, {"$count": "n"}],
                    "both": [{"$match": {"products": {"$all": ["Derivatives", "Commodity"]}}}, {"$count": "n"}]}}]"#,
                r#"SELECT jsonb_build_object('low', jsonb_build_array(jsonb_build_object('n', count(*) FILTER (WHERE num(d->'limit') < 9000))),
                     'both', jsonb_build_array(jsonb_build_object('n', count(*) FILTER (WHERE d->'products' @> '["Derivatives", "Commodity"]')))) FROM plain"#,
            ),
        ],
    },
    Set {
        file: "books",
        shard_key: r#"{"_id": "hashed"}"#,
        pipelines: [
            (
                r#"[{"$unwind": "$authors"}, {"$group": {"_id": "$authors", "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 6}]"#,
                r#"SELECT jsonb_build_object('_id', a, 'n', count(*)) FROM plain, jsonb_array_elements_text(d->'authors') a GROUP BY a
                   ORDER BY count(*) DESC, a COLLATE "C" LIMIT 6"#,
            ),
            (
                r#"[{"$match": {"publishedDate": {"$exists": true}}},
                   {"$group": {"_id": {"$year": "$publishedDate"}, "pages": {"$sum": "$pageCount"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', y, 'pages', sum(num(d->'pageCount')), 'n', count(*)) FROM plain,
                   extract(year FROM (d->'publishedDate'->>'$date')::timestamptz AT TIME ZONE 'UTC') y WHERE d ? 'publishedDate' GROUP BY y ORDER BY y",
            ),
            (
                r#"[{"$unwind": "$categories"}, {"$group": {"_id": "$categories", "titles": {"$addToSet": "$title"}}},
                   {"$project": {"n": {"$size": "$titles"}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 10}]"#,
                r#"SELECT jsonb_build_object('_id', c, 'n', count(DISTINCT d->'title')) FROM plain, jsonb_array_elements_text(d->'categories') c GROUP BY c
                   ORDER BY count(DISTINCT d->'title') DESC, c COLLATE "C" LIMIT 10"#,
            ),
            (
                r#"[{"$group": {"_id": "$status", "most": {"$max": "$pageCount"}, "long": {"$sum": {"$cond": [{"$gt": ["$pageCount", 500]}, 1, 0]}}}},
                   {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', d->'status', 'most', max(num(d->'pageCount')), 'long', count(*) FILTER (WHERE num(d->'pageCount') > 500))
                 FROM plain GROUP BY d->'status' ORDER BY d->'status'",
            ),
            (
                r#"[{"$match": {"title": {"$regex": "in Action"}}}, {"$sort": {"title": 1, "isbn": 1}}, {"$skip": 5}, {"$limit": 7},
                   {"$project": {"_id": 0, "title": {"$toUpper": "$title"}, "n": {"$size": "$authors"}}}]"#,
                r#"SELECT jsonb_build_object('title', upper(d->>'title'), 'n', jsonb_array_length(d->'authors')) FROM plain WHERE d->>'title' LIKE '%in Action%'
                   ORDER BY d->>'title' COLLATE "C", d->>'isbn' COLLATE "C" OFFSET 5 LIMIT 7"#,
            ),
        ],
    },
    Set {
        file: "countries-small",
        shard_key: r#"{"region": 1, "cca3": 1}"#,
        pipelines: [
            (
                r#"[{"$group": {"_id": "$region", "area": {"$sum": "$area"}, "n": {"$count": {}}, "inland": {"$sum": {"$toInt": "$landlocked"}}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', d->'region', 'area', sum(num(d->'area')), 'n', count(*), 'inland', count(*) FILTER (WHERE (d->'landlocked')::bool))
                   FROM plain GROUP BY d->'region' ORDER BY (d->'region') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$project": {"l": {"$objectToArray": "$languages"}}}, {"$unwind": "$l"}, {"$group": {"_id": "$l.v", "n": {"$sum": 1}}},
                   {"$sort": {"n": -1, "_id": 1}}, {"$limit": 8}]"#,
                r#"SELECT jsonb_build_object('_id', value, 'n', count(*)) FROM plain, jsonb_each_text(d->'languages') GROUP BY value
                   ORDER BY count(*) DESC, value COLLATE "C" LIMIT 8"#,
            ),
            (
                r#"[{"$project": {"_id": 0, "cca3": 1, "n": {"$size": {"$ifNull": ["$borders", []]}}}}, {"$sort": {"n": -1, "cca3": 1}}, {"$limit": 6}]"#,
                r#"SELECT jsonb_build_object('cca3', d->'cca3', 'n', n) FROM plain, coalesce(jsonb_array_length(d->'borders'), 0) n
                   ORDER BY n DESC, d->>'cca3' COLLATE "C" LIMIT 6"#,
            ),
            (
                r#"[{"$group": {"_id": "$region", "top": {"$topN": {"n": 2, "sortBy": {"area": -1, "cca3": 1}, "output": "$cca3"}}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', region, 'top', jsonb_agg(cca3 ORDER BY r)) FROM
                     (SELECT d->>'region' region, d->>'cca3' cca3, row_number() OVER (PARTITION BY d->>'region' ORDER BY num(d->'area') DESC, d->>'cca3' COLLATE "C") r
                      FROM plain) AS f WHERE r <= 2 GROUP BY region ORDER BY region COLLATE "C""#,
            ),
            (
                r#"[{"$setWindowFields": {"partitionBy": "$region", "sortBy": {"area": -1}, "output": {"of": {"$sum": "$area"},
                    "so_far": {"$sum": "$area", "window": {"documents": ["unbounded", "current"]}}}}},
                   {"$match": {"area": {"$gt": 2000000}}}, {"$sort": {"cca3": 1}}, {"$project": {"_id": 0, "cca3": 1, "so_far": 1, "of": 1}}]"#,
                r#"SELECT jsonb_build_object('cca3', c, 'so_far', s, 'of', o) FROM
                     (SELECT d->>'cca3' c, num(d->'area') a, sum(num(d->'area')) OVER (PARTITION BY d->'region' ORDER BY num(d->'area') DESC) s,
                             sum(num(d->'area')) OVER (PARTITION BY d->'region') o FROM plain) AS f WHERE a > 2000000 ORDER BY c COLLATE "C""#,
            ),
        ],
    },
    Set {
        file: "customers",
        shard_key: r#"{"username": "hashed"}"#,
        pipelines: [
            (
                r#"[{"$group": {"_id": {"$subtract": [{"$year": "$birthdate"}, {"$mod": [{"$year": "$birthdate"}, 10]}]}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', y - y % 10, 'n', count(*)) FROM plain,
                   CAST(extract(year FROM to_timestamp(num(d->'birthdate'->'$date')::float8 / 1000) AT TIME ZONE 'UTC') AS int) y GROUP BY y - y % 10 ORDER BY y - y % 10",
            ),
            (
                r#"[{"$group": {"_id": null, "accounts": {"$sum": {"$size": "$accounts"}}, "most": {"$max": {"$size": "$accounts"}}}}]"#,
                "SELECT jsonb_build_object('_id', NULL, 'accounts', sum(jsonb_array_length(d->'accounts')), 'most', max(jsonb_array_length(d->'accounts'))) FROM plain",
            ),
            (
                r#"[{"$project": {"t": {"$objectToArray": "$tier_and_details"}}}, {"$unwind": "$t"}, {"$match": {"t.v.active": true}},
                   {"$group": {"_id": "$t.v.tier", "n": {"$sum": 1}, "benefits": {"$avg": {"$size": "$t.v.benefits"}}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', value->'tier', 'n', count(*), 'benefits', avg(jsonb_array_length(value->'benefits')))
                   FROM plain, jsonb_each(d->'tier_and_details') WHERE (value->'active')::bool GROUP BY value->'tier' ORDER BY (value->'tier') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": {"$arrayElemAt": [{"$split": ["$email", "@"]}, 1]}, "n": {"$count": {}}}}, {"$sort": {"n": -1, "_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', split_part(d->>'email', '@', 2), 'n', count(*)) FROM plain GROUP BY split_part(d->>'email', '@', 2)
                   ORDER BY count(*) DESC, split_part(d->>'email', '@', 2) COLLATE "C""#,
            ),
            (
                r#"[{"$unwind": "$accounts"}, {"$group": {"_id": "$accounts", "owners": {"$sum": 1}}}, {"$match": {"owners": {"$gt": 1}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', num(a), 'owners', count(*)) FROM plain, jsonb_array_elements(d->'accounts') a GROUP BY num(a)
                 HAVING count(*) > 1 ORDER BY num(a)",
            ),
        ],
    },
    Set {
        file: "grades",
        shard_key: r#"{"class_id": 1}"#,
        pipelines: [
            (
                r#"[{"$unwind": "$scores"}, {"$group": {"_id": {"c": "$class_id", "t": "$scores.type"}, "average": {"$avg": "$scores.score"}, "n": {"$sum": 1}}},
                   {"$sort": {"_id.c": 1, "_id.t": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', jsonb_build_object('c', d->'class_id', 't', s->'type'), 'average', avg(num(s->'score')), 'n', count(*))
                   FROM plain, jsonb_array_elements(d->'scores') s GROUP BY d->'class_id', s->'type' ORDER BY num(d->'class_id'), (s->'type') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$unwind": "$scores"}, {"$match": {"scores.type": "exam"}}, {"$group": {"_id": "$class_id", "spread": {"$stdDevPop": "$scores.score"}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', d->'class_id', 'spread', stddev_pop(num(s->'score'))) FROM plain, jsonb_array_elements(d->'scores') s
                 WHERE s->>'type' = 'exam' GROUP BY d->'class_id' ORDER BY num(d->'class_id')",
            ),
            (
                r#"[{"$project": {"student_id": 1, "best": {"$max": "$scores.score"}}}, {"$group": {"_id": "$student_id", "best": {"$max": "$best"}}},
                   {"$sort": {"best": -1}}, {"$limit": 5}]"#,
                "SELECT jsonb_build_object('_id', d->'student_id', 'best', max(num(s->'score'))) FROM plain, jsonb_array_elements(d->'scores') s
                 GROUP BY d->'student_id' ORDER BY max(num(s->'score')) DESC LIMIT 5",
            ),
            (
                r#"[{"$unwind": "$scores"}, {"$match": {"scores.type": "exam"}},
                   {"$setWindowFields": {"partitionBy": "$class_id", "sortBy": {"scores.score": 1}, "output": {"near": {"$count": {}, "window": {"range": [-5, 5]}}}}},
                   {"$group": {"_id": "$class_id", "most": {"$max": "$near"}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', c, 'most', max(near)) FROM
                   (SELECT d->'class_id' c, count(*) OVER (PARTITION BY d->'class_id' ORDER BY num(s->'score') RANGE BETWEEN 5 PRECEDING AND 5 FOLLOWING) near
                    FROM plain, jsonb_array_elements(d->'scores') s WHERE s->>'type' = 'exam') AS f GROUP BY c ORDER BY num(c)",
            ),
            (
                r#"[{"$unwind": "$scores"}, {"$setWindowFields": {"output": {"c": {"$covariancePop": ["$student_id", "$scores.score"]}}}},
                   {"$limit": 1}, {"$project": {"_id": 0, "c": 1}}]"#,
                "SELECT jsonb_build_object('c', covar_pop(num(d->'student_id')::float8, num(s->'score')::float8)) FROM plain, jsonb_array_elements(d->'scores') s",
            ),
        ],
    },
    Set {
        file: "products",
        shard_key: r#"{"_id": "hashed"}"#,
        pipelines: [
            (
                r#"[{"$unwind": "$type"}, {"$group": {"_id": "$type", "n": {"$sum": 1}, "price": {"$sum": "$price"}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', t, 'n', count(*), 'price', coalesce(sum(num(d->'price')), 0)) FROM plain,
                     jsonb_array_elements_text(CASE jsonb_typeof(d->'type') WHEN 'array' THEN d->'type' ELSE jsonb_build_array(d->'type') END) t
                   GROUP BY t ORDER BY t COLLATE "C""#,
            ),
            (
                r#"[{"$match": {"price": {"$type": "number"}}}, {"$sort": {"price": 1, "name": 1}}, {"$project": {"_id": 0, "price": 1, "name": 1}}]"#,
                r#"SELECT jsonb_build_object('price', d->'price', 'name', d->'name') FROM plain WHERE jsonb_typeof(d->'price') = 'number'
                   ORDER BY num(d->'price'), d->>'name' COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": "$available", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', d->'available', 'n', count(*)) FROM plain GROUP BY d->'available' ORDER BY (d->'available')::bool NULLS FIRST",
            ),
            (
                r#"[{"$match": {"warranty_years": {"$exists": true}}}, {"$replaceWith": {"p": "$name", "w": "$warranty_years"}}, {"$sort": {"p": 1}}]"#,
                r#"SELECT jsonb_build_object('p', d->'name', 'w', d->'warranty_years') FROM plain WHERE d ? 'warranty_years' ORDER BY d->>'name' COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": null, "middle": {"$median": {"input": "$price", "method": "approximate"}},
                    "parts": {"$percentile": {"input": "$price", "p": [0.25, 0.9], "method": "approximate"}}}}]"#,
                "SELECT jsonb_build_object('_id', NULL, 'middle', percentile_disc(0.5) WITHIN GROUP (ORDER BY num(d->'price')),
                   'parts', jsonb_build_array(percentile_disc(0.25) WITHIN GROUP (ORDER BY num(d->'price')), percentile_disc(0.9) WITHIN GROUP (ORDER BY num(d->'price')))) FROM plain",
            ),
        ],
    },
    Set {
        file: "restaurant",
        shard_key: r#"{"outcode": 1}"#,
        pipelines: [
            (
                r#"[{"$match": {"rating": {"$type": "number"}}}, {"$group": {"_id": "$type_of_food", "average": {"$avg": "$rating"}, "n": {"$sum": 1}}},
                   {"$match": {"n": {"$gte": 50}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', d->'type_of_food', 'average', avg(num(d->'rating')), 'n', count(*)) FROM plain
                   WHERE jsonb_typeof(d->'rating') = 'number' GROUP BY d->'type_of_food' HAVING count(*) >= 50 ORDER BY (d->'type_of_food') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": "$outcode", "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 10}]"#,
                r#"SELECT jsonb_build_object('_id', d->'outcode', 'n', count(*)) FROM plain GROUP BY d->'outcode'
                   ORDER BY count(*) DESC, (d->'outcode') #>> '{}' COLLATE "C" LIMIT 10"#,
            ),
            (
                r#"[{"$bucket": {"groupBy": "$rating", "boundaries": [0, 3, 5, 7], "default": "other", "output": {"n": {"$sum": 1}, "best": {"$max": "$rating"}}}}]"#,
                "SELECT jsonb_build_object('_id', CASE WHEN r IS NULL THEN to_jsonb('other'::text) WHEN r < 3 THEN '0' WHEN r < 5 THEN '3' ELSE '5' END,
                   'n', count(*), 'best', (array_agg(d->'rating' ORDER BY r DESC))[1])
                 FROM plain, LATERAL (SELECT CASE jsonb_typeof(d->'rating') WHEN 'number' THEN num(d->'rating') END r) AS f
                 GROUP BY CASE WHEN r IS NULL THEN to_jsonb('other'::text) WHEN r < 3 THEN '0' WHEN r < 5 THEN '3' ELSE '5' END ORDER BY min(r) NULLS LAST",
            ),
            (
                r#"[{"$group": {"_id": {"f": "$type_of_food", "o": "$outcode"}, "n": {"$sum": 1}}}, {"$group": {"_id": "$_id.f", "areas": {"$sum": 1}, "all": {"$sum": "$n"}}},
                   {"$sort": {"areas": -1, "_id": 1}}, {"$limit": 5}]"#,
                r#"SELECT jsonb_build_object('_id', d->'type_of_food', 'areas', count(DISTINCT d->'outcode'), 'all', count(*)) FROM plain GROUP BY d->'type_of_food'
                   ORDER BY count(DISTINCT d->'outcode') DESC, (d->'type_of_food') #>> '{}' COLLATE "C" LIMIT 5"#,
            ),
            (
                r#"[{"$group": {"_id": "$type_of_food", "n": {"$sum": 1}}}, {"$setWindowFields": {"sortBy": {"n": -1}, "output": {"r": {"$denseRank": {}}}}},
                   {"$match": {"r": {"$lte": 6}}}, {"$sort": {"r": 1, "_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', f, 'n', n, 'r', r) FROM (SELECT f, n, dense_rank() OVER (ORDER BY n DESC) r FROM
                     (SELECT d->>'type_of_food' f, count(*) n FROM plain GROUP BY 1) AS g) AS h WHERE r <= 6 ORDER BY r, f COLLATE "C""#,
            ),
        ],
    },
    Set {
        file: "students",
        shard_key: r#"{"_id": 1}"#,
        pipelines: [
            (
                r#"[{"$unwind": "$scores"}, {"$group": {"_id": "$scores.type", "average": {"$avg": "$scores.score"}, "least": {"$min": "$scores.score"}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', s->'type', 'average', avg(num(s->'score')), 'least', min(num(s->'score'))) FROM plain, jsonb_array_elements(d->'scores') s
                   GROUP BY s->'type' ORDER BY (s->'type') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$project": {"sum": {"$sum": "$scores.score"}}}, {"$sort": {"sum": -1}}, {"$limit": 3}]"#,
                "SELECT jsonb_build_object('_id', d->'_id', 'sum', sum(num(s->'score'))) FROM plain, jsonb_array_elements(d->'scores') s
                 GROUP BY d->'_id' ORDER BY sum(num(s->'score')) DESC LIMIT 3",
            ),
            (
                r#"[{"$match": {"scores": {"$elemMatch": {"type": "exam", "score": {"$gte": 90}}}}}, {"$count": "n"}]"#,
                "SELECT jsonb_build_object('n', count(*)) FROM plain, jsonb_array_elements(d->'scores') s WHERE s->>'type' = 'exam' AND num(s->'score') >= 90",
            ),
            (
                r#"[{"$group": {"_id": {"$toLower": {"$substrCP": ["$name", 0, 1]}}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', lower(left(d->>'name', 1)), 'n', count(*)) FROM plain GROUP BY lower(left(d->>'name', 1)) ORDER BY lower(left(d->>'name', 1)) COLLATE "C""#,
            ),
            (
                r#"[{"$project": {"_id": 1, "worst": {"$min": "$scores.score"}, "best": {"$max": "$scores.score"}}},
                   {"$match": {"$expr": {"$gt": [{"$subtract": ["$best", "$worst"]}, 80]}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', d->'_id', 'worst', min(num(s->'score')), 'best', max(num(s->'score'))) FROM plain, jsonb_array_elements(d->'scores') s
                 GROUP BY d->'_id' HAVING max(num(s->'score')) - min(num(s->'score')) > 80 ORDER BY num(d->'_id')",
            ),
        ],
    },
    Set {
        file: "theaters",
        shard_key: r#"{"location.address.state": 1}"#,
        pipelines: [
            (
                r#"[{"$sortByCount": "$location.address.state"}, {"$sort": {"count": -1, "_id": 1}}, {"$limit": 10}]"#,
                r#"SELECT jsonb_build_object('_id', s, 'count', count(*)) FROM plain, LATERAL (SELECT d->'location'->'address'->>'state' s) AS f GROUP BY s
                   ORDER BY count(*) DESC, s COLLATE "C" LIMIT 10"#,
            ),
            (
                r#"[{"$group": {"_id": {"s": "$location.address.state", "c": "$location.address.city"}}}, {"$group": {"_id": "$_id.s", "cities": {"$count": {}}}},
                   {"$sort": {"cities": -1, "_id": 1}}, {"$limit": 5}]"#,
                r#"SELECT jsonb_build_object('_id', s, 'cities', count(DISTINCT d->'location'->'address'->'city')) FROM plain,
                     LATERAL (SELECT d->'location'->'address'->>'state' s) AS f GROUP BY s ORDER BY count(DISTINCT d->'location'->'address'->'city') DESC, s COLLATE "C" LIMIT 5"#,
            ),
            (
                r#"[{"$match": {"location.address.street2": {"$ne": null}}}, {"$count": "n"}]"#,
                "SELECT jsonb_build_object('n', count(*)) FROM plain WHERE d->'location'->'address'->>'street2' IS NOT NULL",
            ),
            (
                r#"[{"$group": {"_id": "$location.address.state", "west": {"$min": {"$arrayElemAt": ["$location.geo.coordinates", 0]}}}}, {"$sort": {"west": 1}}, {"$limit": 5}]"#,
                "SELECT jsonb_build_object('_id', d->'location'->'address'->'state', 'west', min(num(d->'location'->'geo'->'coordinates'->0))) FROM plain
                 GROUP BY d->'location'->'address'->'state' ORDER BY min(num(d->'location'->'geo'->'coordinates'->0)) LIMIT 5",
            ),
            (
                r#"[{"$setWindowFields": {"partitionBy": "$location.address.state", "sortBy": {"theaterId": 1}, "output": {"before": {"$shift": {"output": "$theaterId", "by": -1}}}}},
                   {"$group": {"_id": "$location.address.state", "gap": {"$max": {"$subtract": ["$theaterId", "$before"]}}}}, {"$sort": {"gap": -1, "_id": 1}}, {"$limit": 5}]"#,
                r#"SELECT jsonb_build_object('_id', s, 'gap', max(g)) FROM (SELECT s, t - lag(t) OVER (PARTITION BY s ORDER BY t) g FROM plain,
                     LATERAL (SELECT d->'location'->'address'->>'state' s, num(d->'theaterId') t) AS f) AS h GROUP BY s ORDER BY max(g) DESC NULLS LAST, s COLLATE "C" LIMIT 5"#,
            ),
        ],
    },
    Set {
        file: "users",
        shard_key: r#"{"email": 1}"#,
        pipelines: [
            (
                r#"[{"$group": {"_id": {"$last": {"$split": ["$email", "@"]}}, "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', m, 'n', count(*)) FROM plain, LATERAL (SELECT split_part(d->>'email', '@', 2) m) AS f GROUP BY m ORDER BY count(*) DESC, m COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": {"$first": {"$split": ["$name", " "]}}, "n": {"$sum": 1}}}, {"$match": {"n": {"$gte": 2}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', m, 'n', count(*)) FROM plain, LATERAL (SELECT split_part(d->>'name', ' ', 1) m) AS f GROUP BY m HAVING count(*) >= 2 ORDER BY m COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": {"$strLenCP": "$name"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#,
                "SELECT jsonb_build_object('_id', length(d->>'name'), 'n', count(*)) FROM plain GROUP BY length(d->>'name') ORDER BY length(d->>'name')",
            ),
            (
                r#"[{"$match": {"password": {"$regex": "^\\$2b\\$12"}}}, {"$group": {"_id": null, "n": {"$sum": 1}, "emails": {"$addToSet": "$email"}}},
                   {"$project": {"_id": 0, "n": 1, "emails": {"$size": "$emails"}}}]"#,
                "SELECT jsonb_build_object('n', count(*), 'emails', count(DISTINCT d->'email')) FROM plain WHERE d->>'password' LIKE '$2b$12%'",
            ),
            (
                r#"[{"$project": {"_id": 0, "u": {"$toUpper": {"$substrCP": ["$name", 0, 2]}}}}, {"$group": {"_id": "$u", "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}, {"$limit": 7}]"#,
                r#"SELECT jsonb_build_object('_id', u, 'n', count(*)) FROM plain, LATERAL (SELECT upper(left(d->>'name', 2)) u) AS f GROUP BY u ORDER BY count(*) DESC, u COLLATE "C" LIMIT 7"#,
            ),
        ],
    },
    Set {
        file: "zips",
        shard_key: r#"{"state": "hashed"}"#,
        pipelines: [
            (
                r#"[{"$group": {"_id": "$state", "pop": {"$sum": "$pop"}}}, {"$match": {"pop": {"$gte": 10000000}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', d->'state', 'pop', sum(num(d->'pop'))) FROM plain GROUP BY d->'state' HAVING sum(num(d->'pop')) >= 10000000
                   ORDER BY (d->'state') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": {"s": "$state", "c": "$city"}, "pop": {"$sum": "$pop"}}}, {"$group": {"_id": "$_id.s", "average": {"$avg": "$pop"}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', s, 'average', avg(p)) FROM (SELECT d->>'state' s, sum(num(d->'pop')) p FROM plain GROUP BY d->>'state', d->'city') AS f
                   GROUP BY s ORDER BY s COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": "$state", "top": {"$top": {"sortBy": {"pop": -1, "_id": 1}, "output": "$_id"}}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', d->'state', 'top', (array_agg(d->'_id' ORDER BY num(d->'pop') DESC, d->>'_id' COLLATE "C"))[1], 'n', count(*)) FROM plain
                   GROUP BY d->'state' ORDER BY (d->'state') #>> '{}' COLLATE "C""#,
            ),
            (
                r#"[{"$setWindowFields": {"partitionBy": "$state", "sortBy": {"_id": 1}, "output": {
                    "so_far": {"$sum": "$pop", "window": {"documents": ["unbounded", "current"]}}, "near": {"$avg": "$pop", "window": {"documents": [-2, 2]}}}}},
                   {"$match": {"pop": {"$gt": 90000}}}, {"$sort": {"_id": 1}}, {"$project": {"so_far": 1, "near": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', i, 'so_far', s, 'near', n) FROM (SELECT d->>'_id' i, num(d->'pop') p, sum(num(d->'pop')) OVER w s,
                     avg(num(d->'pop')) OVER (w ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) n FROM plain
                     WINDOW w AS (PARTITION BY d->'state' ORDER BY d->>'_id' COLLATE "C")) AS f WHERE p > 90000 ORDER BY i COLLATE "C""#,
            ),
            (
                r#"[{"$group": {"_id": "$state", "parts": {"$percentile": {"input": "$pop", "p": [0.5, 0.99], "method": "approximate"}}}}, {"$sort": {"_id": 1}}]"#,
                r#"SELECT jsonb_build_object('_id', d->'state', 'parts', to_jsonb(percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY num(d->'pop')))) FROM plain
                   GROUP BY d->'state' ORDER BY (d->'state') #>> '{}' COLLATE "C""#,
            ),
        ],
    },
];

const NUM: &str = r#"CREATE FUNCTION num(v jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE jsonb_typeof(v) WHEN 'number' THEN v::numeric
      WHEN 'object' THEN coalesce(v ->> '$numberInt', v ->> '$numberLong', v ->> '$numberDouble')::numeric END $$"#;

/// A number in any form.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Object(fields) if fields.len() == 1 => {
            let text = ["$numberInt", "$numberLong", "$numberDouble"].iter().find_map(|name| fields.get(*name));
            text?.as_str()?.parse().ok()
        }
        _ => None,
    }
}

/// True if two answers mean the same. Numbers may differ in their last digits, as SQL computes them in decimals.
fn same(found: &Value, expected: &Value) -> bool {
    if let (Some(found), Some(expected)) = (number(found), number(expected)) {
        return (found - expected).abs() <= 1e-9 * expected.abs().max(1.0);
    }
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && expected.iter().all(|(name, value)| found.get(name).is_some_and(|found| same(found, value)))
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(found, expected)| same(found, expected))
        }
        (found, expected) => found == expected,
    }
}

fn answers(client: &mut Client, sql: &str, arguments: &[&(dyn postgres::types::ToSql + Sync)]) -> Vec<Value> {
    let rows = client.query(sql, arguments).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn pipelines_answer_what_sql_does() {
    if shared_data().is_none() {
        return;
    }
    let cluster = Cluster::start(2);
    let mut client = cluster.router.client();
    client.batch_execute(NUM).unwrap();
    client.batch_execute("SELECT docshard.stop_balancer()").unwrap();
    let mut checked = 0;
    for set in SETS {
        let (texts, namespace) = (docs(&format!("{}.json", set.file)).unwrap(), format!("real.{}", set.file));
        client
            .execute("SELECT docshard.shard_collection($1::text, $2::text::json)", &[&namespace, &set.shard_key])
            .unwrap_or_else(|e| panic!("{namespace}: {e:?}"));
        client.batch_execute("DROP TABLE IF EXISTS plain; CREATE TABLE plain (d jsonb)").unwrap();
        for batch in texts.chunks(1000) {
            let insert = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])";
            client.execute(insert, &[&namespace, &batch]).unwrap_or_else(|e| panic!("{namespace}: {e:?}"));
            client.execute("INSERT INTO plain SELECT unnest($1::text[]::jsonb[])", &[&batch]).unwrap();
        }
        spread(&mut client, &namespace, &texts);
        for (pipeline, sql) in set.pipelines {
            let found = answers(
                &mut client,
                "SELECT d::jsonb FROM docshard.aggregate($1::text, $2::text::json) AS d",
                &[&namespace, &pipeline],
            );
            let expected = answers(&mut client, sql, &[]);
            assert!(!expected.is_empty(), "{}: {sql}", set.file);
            let (found, expected) = (json!(found), json!(expected));
            assert!(same(&found, &expected), "{} {pipeline}\nfound    {found}\nexpected {expected}", set.file);
            checked += 1;
        }
    }
    assert_eq!(checked, 55);
}

/// Splits a collection that has one chunk, and moves one half, so that both shards have documents.
fn spread(client: &mut Client, namespace: &str, texts: &[String]) {
    let sql = "SELECT count(*) FROM docshard.chunks WHERE namespace = $1";
    if client.query_one(sql, &[&namespace]).unwrap().get::<_, i64>(0) > 1 {
        return;
    }
    let middle = texts.get(texts.len() / 2).unwrap();
    let document = "SELECT docshard.find_one($1::text, json_build_object('_id', $2::text::json -> '_id'))::text";
    let document: String = client.query_one(document, &[&namespace, middle]).unwrap().get(0);
    let split = "SELECT docshard.split_find($1::text, $2::text::json)";
    client.execute(split, &[&namespace, &document]).unwrap_or_else(|e| panic!("{namespace} {document}: {e:?}"));
    let moved = "SELECT docshard.move_chunk($1::text, $2::text::json, s.name) FROM (SELECT to_jsonb(s) ->> 'name' AS name FROM docshard.list_shards() s) s
                 WHERE s.name NOT IN (SELECT shard::text FROM docshard.chunks WHERE namespace = $1) LIMIT 1";
    client.execute(moved, &[&namespace, &document]).unwrap_or_else(|e| panic!("{namespace} {document}: {e:?}"));
}
