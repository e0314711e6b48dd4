//! Tests that run inside a server process and compare what `docshard_core` reads and writes with PostgreSQL itself.

#[pgrx::pg_schema]
mod tests {
    use crate::pg::spi;
    use docshard_core::routing::protocol::Shape;
    use docshard_core::sql::param::Param;
    use docshard_core::values::document::value::Value;
    use docshard_core::values::document::{ext_json, print, raw, write};
    use docshard_core::values::order;
    use pgrx::prelude::*;
    use serde_json::{Value as Json, json};

    /// A pseudo-random number generator (xorshift) with a fixed seed, so that a failure can be reproduced.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }

        fn text(&mut self) -> String {
            let letters = ["a", "b", "z", "é", "漢", "\"", "\\", " ", "0", "\n"];
            (0..self.below(12)).map(|_| letters[self.below(letters.len() as u64) as usize]).collect()
        }

        fn number(&mut self) -> Json {
            match self.below(6) {
                0 => json!(self.below(10) as i64 - 5),
                1 => json!(self.0 as i64),
                2 => json!((self.0 % 100_000) as f64 / 100.0 - 300.0),
                3 => json!(f64::from_bits(self.0 & 0xBFFF_FFFF_FFFF_FFFF | 1 << 52)),
                4 => json!(self.below(1000) as f64),
                _ => json!(self.below(1 << 40)),
            }
        }

        fn json(&mut self, depth: u64) -> Json {
            match self.below(if depth == 0 { 5 } else { 9 }) {
                0 => Json::Null,
                1 => Json::Bool(self.below(2) == 0),
                2 | 3 => self.number(),
                4 => Json::String(self.text()),
                5 | 6 => Json::Array((0..self.below(40)).map(|_| self.json(depth - 1)).collect()),
                _ => self.object(depth - 1),
            }
        }

        fn object(&mut self, depth: u64) -> Json {
            let fields = self.below(40);
            Json::Object(
                (0..fields).map(|_| (format!("{}{}", self.text(), self.below(90)), self.json(depth))).collect(),
            )
        }
    }

    /// Returns the bytes that PostgreSQL itself stores for a jsonb text.
    fn stored(text: &str) -> Vec<u8> {
        let rows = spi::query("SELECT $1::text::jsonb", &[Param::Text(text)]).unwrap();
        rows[0].bytes(0)
    }

    /// SQL that turns a jsonb's bytes into text.
    fn unpacked() -> String {
        format!("SELECT {}::text", docshard_core::routing::protocol::sql::unpack("$1"))
    }

    #[pg_test]
    fn pg_the_same_text_may_have_parameters_of_other_types() {
        let sql = "SELECT pg_catalog.pg_typeof($1)::text";
        for (param, name) in [(Param::Int8(7), "bigint"), (Param::Text("7"), "text"), (Param::Int8(7), "bigint")] {
            assert_eq!(spi::read(sql, &[param]).unwrap()[0].get(0), Some(name.as_bytes()));
        }
    }

    #[pg_test]
    fn jsonb_is_printed_as_postgresql_does() {
        let printed = |bytes: &[u8]| {
            let mut out = Vec::new();
            print::print(bytes, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        let check = |text: &str| {
            let rows = spi::query("SELECT $1::jsonb::text", &[Param::Text(text)]).unwrap();
            assert_eq!(printed(&stored(text)).as_deref(), Some(rows[0].text(0)), "{text}");
        };
        let mut random = Random(0x5EED);
        for _ in 0..400 {
            check(&random.object(3).to_string());
        }
        for text in
            ["1", "-0", "1.50", "-0.000", "0.00001234", "100.000", "12345678.87654321", "10000", "0.1", "\"x\"", "true"]
        {
            check(text);
            check(&format!("[{text}]"));
        }
        for number in ["1e300", "-1.25e-300", "123456789012345678901234567890.5", "1e-16383", "1e131071"] {
            check(&format!("{{\"n\": {number}}}"));
        }
        // docshard's printer leaves documents that are nested more deeply than it allows to PostgreSQL.
        assert_eq!(printed(&stored(&format!("{}{}", "[".repeat(1000), "]".repeat(1000)))), None);
    }

    #[pg_test]
    fn jsonb_is_read_and_written_as_postgresql_does() {
        let mut random = Random(0x5EED);
        for _ in 0..400 {
            let json = random.object(3);
            let bytes = stored(&json.to_string());
            raw::validate(&bytes).unwrap();
            let read = Value::from_raw(raw::root(&bytes));
            assert_eq!(read, ext_json::from_json(&json).unwrap(), "read of {json}");
            let copied = write::document(&write::Part::Raw(raw::root(&bytes))).unwrap();
            assert_eq!(copied, bytes, "copy of {json}");
            // The written bytes are the ones that PostgreSQL makes of the printed text.
            let written = write::value(&read).unwrap();
            let printed = spi::query(&unpacked(), &[Param::Bytea(&written)]).unwrap();
            assert_eq!(stored(printed[0].text(0)), written, "write of {json}");
        }
    }

    /// The signature that callers of each function use is the signature that the extension declares.
    #[pg_test]
    fn the_protocol_has_the_extensions_functions() {
        let signatures = docshard_core::routing::protocol::signatures();
        let mut differences = Vec::new();
        for signature in &signatures {
            let rows = spi::query(
                "SELECT pg_catalog.regexp_replace(pg_catalog.pg_get_function_identity_arguments(p.oid), 'VARIADIC |\"', '', 'g'), \
                        pg_catalog.pg_get_function_result(p.oid) \
                 FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'docshard_internal'::pg_catalog.regnamespace AND p.proname = $1::pg_catalog.name",
                &[Param::Text(signature.function)],
            )
            .unwrap();
            let list = |columns: &[docshard_core::sql::record::Column]| {
                columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect::<Vec<_>>().join(", ")
            };
            let returned = match signature.returns {
                Shape::Void => "void".to_owned(),
                Shape::Value(kind) => kind.to_owned(),
                Shape::Set(kind) => format!("SETOF {kind}"),
                Shape::Table(columns) => format!("TABLE({})", list(columns)),
            };
            let found: Vec<_> = rows.iter().map(|row| (row.text(0).to_owned(), row.text(1).to_owned())).collect();
            let declared = [(list(signature.arguments), returned)];
            if found != declared {
                differences
                    .push(format!("{}: {declared:?} in the protocol, {found:?} in the extension", signature.function));
            }
        }
        assert!(differences.is_empty(), "{differences:#?}");
        let mut names: Vec<_> = signatures.iter().map(|signature| signature.function).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]) && names.len() > 60, "{names:?}");
    }

    /// A malformed answer raises an error that names the call.
    #[pg_test]
    fn malformed_answers_are_refused() {
        use docshard_core::routing::protocol::measure::{EstimateSizes, MeasureRange};
        use docshard_core::routing::protocol::{Call, node::Identity};
        let row =
            |cells: &[Option<&[u8]>]| spi::SpiRow::new(cells.iter().map(|cell| cell.map(<[u8]>::to_vec)).collect());
        let number = Some(&[0, 0, 0, 0, 0, 0, 0, 9][..]);
        assert_eq!(MeasureRange::decode(&[row(&[number, number])]).unwrap().bytes, 9);
        for cells in [&[number][..], &[number, None], &[number, Some(&[0, 0, 0, 9])], &[]] {
            let message = MeasureRange::decode(&[row(cells)]).unwrap_err().into_message();
            assert!(message.contains("docshard_internal.measure_range"), "{message}");
        }
        assert!(MeasureRange::decode::<spi::SpiRow>(&[]).is_err());
        assert!(MeasureRange::decode(&[row(&[number, number]), row(&[number, number])]).is_err());
        assert!(Identity::decode(&[row(&[Some(&[0xFF])])]).is_err());
        assert!(Identity::decode(&[row(&[None])]).is_err());
        let estimates = EstimateSizes::decode(&[row(&[Some(&[0, 0, 0, 1]), None, number])]).unwrap();
        assert_eq!((estimates[0].collection, estimates[0].documents, estimates[0].bytes), (1, None, 9));
        assert!(EstimateSizes::decode(&[row(&[None, None, None])]).is_err());
    }

    /// The statements on a shard's tables return the columns that are declared. As with calls, the error for a malformed answer names the
    /// statement.
    #[pg_test]
    fn declared_statements_return_their_columns() {
        use crate::shard::here::call;
        use docshard_core::routing::protocol::Call;
        use docshard_core::routing::protocol::node::{Ping, ProbeNode, ReadAllPrepared, ReadPrepared};
        use docshard_core::routing::protocol::shard_tables::*;
        assert!(call(&ReadNode {}).unwrap().is_empty() && call(&HasLeftCluster {}).unwrap());
        let (cluster_id, epoch, router) = (7, 1, "a");
        call(&InsertNode { cluster_id, shard: "b", router, epoch }).unwrap();
        for (epoch, raised) in [(2, 1), (2, 0), (1, 0)] {
            let raise = RaiseEpoch { epoch, cluster_id, router };
            assert_eq!(call(&raise).unwrap().len(), raised, "{raise:?}");
        }
        let advance = AdvanceCounter { counter: 3, counted_at: "2020-01-01 00:00:00+00", epoch: 2, router, cluster_id };
        assert_eq!(call(&advance).unwrap().len(), 1);
        assert!(call(&advance).unwrap().is_empty(), "it has that counter");
        let node = call(&ReadNode {}).unwrap().pop().unwrap();
        assert_eq!((node.cluster_id, &*node.shard, node.epoch, node.counter), (7, "b", 2, 3));
        let reported = call(&ReportPosition {}).unwrap().pop().unwrap();
        assert!(reported.identity.ends_with("/b") && reported.counted_at.is_some(), "{reported:?}");
        assert_eq!(call(&MayReadNode {}).unwrap(), [Some(true)]);
        assert!(call(&HasAcceptedRouter {}).unwrap() && !call(&HasLeftCluster {}).unwrap());

        let (collection, token, before) = (5, 6, 1);
        call(&docshard_core::routing::protocol::table::CreateTable {
            collection,
            token,
            version: before,
            id_index: false,
        })
        .unwrap();
        let set = SetVersion { collection, token, before, version: 2 };
        assert_eq!((call(&set).unwrap().len(), call(&set).unwrap().len()), (1, 0));
        for asked in [None, Some(collection)] {
            let placed = call(&ReadPlacements { collection: asked }).unwrap().pop().unwrap();
            assert_eq!((placed.collection_id, placed.token, placed.version), (5, 6, 2));
        }
        assert!(call(&ReadPlacements { collection: Some(4) }).unwrap().is_empty());
        let seen = call(&SeeVersions { collection: None }).unwrap().unwrap();
        assert_eq!(call(&ReportHealth {}).unwrap().seen, seen);
        assert!(String::from_utf8(seen).unwrap().contains("[[5, 6, 2]]"));
        assert_eq!(call(&ReadTableSize { collection }).unwrap(), Some(0));
        assert_eq!(call(&ReadTableSize { collection: 4 }).unwrap(), None);
        let progress = call(&ReadBuildProgress { collection, relations: "{c5_pkey}" }).unwrap();
        assert_eq!(progress[0].phase, "done");
        assert_eq!(call(&CountWrites { collections: &[4, 5] }).unwrap()[0].collection_id, 5);
        let found = call(&ReadRelations {}).unwrap().pop().unwrap();
        assert_eq!((found.collection, found.index, found.present, found.version), (5, None, true, Some(2)));
        assert_eq!(call(&FindRelations { relations: &["c4", "c5"] }).unwrap(), ["c5"]);
        assert_eq!(call(&ReadValidIndexes { collection }).unwrap(), ["c5_pkey"]);
        assert!(call(&ReadInvalidIndexes {}).unwrap().is_empty());

        let migration = 8;
        call(&InsertCapture { collection, migration, min: &[1], max: None }).unwrap();
        assert_eq!(call(&ReadCapturedMoves {}).unwrap(), [8]);
        let end = EndCapture { collection, migration };
        assert_eq!((call(&end).unwrap().len(), call(&end).unwrap().len()), (1, 0));
        call(&InsertCapture { collection, migration, min: &[1], max: Some(&[2]) }).unwrap();
        for (migration, collection, left) in [(Some(9), None, 1), (Some(8), Some(4), 1), (None, Some(5), 0)] {
            call(&DeleteCaptures { migration, collection }).unwrap();
            assert_eq!(call(&ReadCapturedMoves {}).unwrap().len(), left, "{migration:?} {collection:?}");
        }
        call(&DeleteChanges { migration, last: i64::MAX }).unwrap();
        spi::query("CREATE TABLE docshard_data.m12_staging ()", &[]).unwrap();
        let tables = call(&ReadMoveTables { names: &crate::shard::leftovers::move_tables() }).unwrap();
        assert_eq!((&*tables[0].relation, tables[0].is_foreign, tables[0].migration), ("m12_staging", false, 12));

        for hi in [None, Some(&[9][..])] {
            let range = TableRange { collection, lo: &[], hi };
            assert!(call(&FindDocument(range)).unwrap().is_empty());
            assert_eq!((call(&CountDocuments(range)).unwrap(), call(&DeleteDocuments(range)).unwrap()), (0, 0));
            assert_eq!(call(&SampleDocumentSize(range)).unwrap(), None);
            assert!(call(&ExplainScan(range)).unwrap()[0][0]["Plan"]["Plan Rows"].is_i64());
        }
        let marked =
            spi::query(&with_mark(&ReadPlacements { collection: None }.statement()), &[Param::OptInt4(None)]).unwrap();
        assert_eq!((marked[0].i64(0), marked[0].text(1), marked[0].i32(3)), (7, "b", 5));

        let key = (-7 << 32) + 0xffff_fffb;
        assert!(!call(&SeeLock { key }).unwrap());
        spi::query("SELECT pg_catalog.pg_advisory_xact_lock($1)", &[Param::Int8(key)]).unwrap();
        spi::query("CREATE TABLE docshard_data.locks_of_another AS SELECT * FROM pg_catalog.pg_locks", &[]).unwrap();
        assert!(call(&SeeLock { key }).unwrap() && call(&SeeForeignLock { key }).unwrap());
        assert!(!call(&SeeLock { key: key + 1 }).unwrap() && !call(&SeeForeignLock { key: key + (1 << 32) }).unwrap());

        let probe = call(&ProbeNode {}).unwrap();
        assert_eq!(probe.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(probe.identity(), crate::catalog::cluster::identity::identity());
        assert_eq!(call(&Ping {}).unwrap(), [1]);
        assert!(call(&ReadPrepared { prefixes: &["docshard_", "x"] }).unwrap().is_empty());
        assert!(call(&ReadAllPrepared { prefix: "docshard_" }).unwrap().is_empty());

        let message = ReadNode::decode(&[spi::SpiRow::new(vec![None; 4])]).unwrap_err().into_message();
        assert!(message.contains("ReadNode"), "{message}");
    }

    #[pg_test]
    fn every_field_is_found_by_its_name() {
        let mut random = Random(7);
        for _ in 0..100 {
            let bytes = stored(&random.object(2).to_string());
            let object = raw::document(&bytes).unwrap();
            for (name, value) in object.iter() {
                let found = Value::from_raw(object.get(name).expect("present"));
                assert_eq!(found, Value::from_raw(value));
            }
            assert!(object.get("no such field").is_none());
        }
    }

    #[pg_test]
    fn numbers_compare_as_postgresql_numerics_do() {
        let mut random = Random(99);
        for _ in 0..300 {
            let (a, b) = (random.number(), random.number());
            let rows = spi::query(
                "SELECT CASE WHEN $1::text::float8 < $2::text::float8 THEN -1 WHEN $1::text::float8 > $2::text::float8 THEN 1 ELSE 0 END",
                &[Param::Text(&a.to_string()), Param::Text(&b.to_string())],
            )
            .unwrap();
            let (x, y) = (ext_json::from_json(&a).unwrap(), ext_json::from_json(&b).unwrap());
            if rows[0].i32(0) != 0 {
                assert_eq!(order::compare_values(&x, &y) as i32, rows[0].i32(0), "{a} and {b}");
            }
        }
    }

    #[pg_test]
    fn the_smallest_start() {
        let inserted = spi::query("SELECT docshard.insert_one('shop.items', '{\"_id\": 1, \"name\": \"pen\"}')", &[]);
        assert_eq!(inserted.unwrap().len(), 1);
        let found = spi::query("SELECT docshard.find('shop.items', '{\"name\": \"pen\"}')::text", &[]).unwrap();
        assert_eq!(found[0].text(0), "{\"_id\": 1, \"name\": \"pen\"}");
    }

    /// Prepares more statements than the cache keeps.
    #[pg_extern]
    fn prepares_many(from: i32) -> i32 {
        (0..600)
            .map(|n| spi::read(&format!("SELECT {n} + $1 + {from}"), &[Param::Int4(0)]).unwrap()[0].i32(0) - n - from)
            .sum()
    }

    /// The plan of a running statement is not evicted.
    #[pg_test]
    fn plans_in_use_stay() {
        let sql = "SELECT n, tests.prepares_many(n * 1000) FROM pg_catalog.generate_series(1, 4) AS n ORDER BY n";
        for _ in 0..2 {
            let rows = spi::query(sql, &[]).unwrap();
            assert_eq!(
                rows.iter().map(|row| (row.i32(0), row.i32(1))).collect::<Vec<_>>(),
                [(1, 0), (2, 0), (3, 0), (4, 0)]
            );
        }
        // A statement that ends with an error returns its plan to the cache.
        for n in 0..600 {
            let failing = format!("SELECT 1 / ($1 - {n})");
            let caught =
                crate::pg::transaction::subtransaction::attempt(|| spi::read(&failing, &[Param::Int4(n)]).map(|_| ()));
            assert!(caught.is_err(), "{failing}");
        }
        assert_eq!(spi::query(sql, &[]).unwrap().len(), 4);
    }

    #[pg_test]
    fn damaged_bytes_never_crash() {
        let mut random = Random(4242);
        let good = stored(&random.object(2).to_string());
        for _ in 0..2000 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            if raw::validate(&bytes).is_ok() {
                // PostgreSQL can print every document that is accepted.
                spi::query(&unpacked(), &[Param::Bytea(&bytes)]).unwrap();
            }
        }
    }
}
