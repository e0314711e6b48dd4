//! The router's side of PostgreSQL's protocol, against servers that keep to it and servers that do not.

use docshard_core::cluster::frontend::{Answer, Frontend, MAX_ROW, MAX_TEXT, Transaction};
use docshard_core::sql::column::Column;
use proptest::prelude::*;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// A header that announces a body of this length.
fn header(kind: u8, length: usize) -> Vec<u8> {
    [&[kind][..], &(length as u32 + 4).to_be_bytes()].concat()
}

fn columns(values: &[Option<&[u8]>]) -> Vec<u8> {
    let column = |value: &Option<&[u8]>| match value {
        None => (-1i32).to_be_bytes().to_vec(),
        Some(bytes) => [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat(),
    };
    values.iter().flat_map(column).collect()
}

fn row(values: &[Option<&[u8]>]) -> Vec<u8> {
    message(b'D', &[&(values.len() as u16).to_be_bytes()[..], &columns(values)].concat())
}

fn error(severity: &str, code: &str, text: &str) -> Vec<u8> {
    message(b'E', format!("S{severity}\0V{severity}\0C{code}\0M{text}\0Ddetail\0Wwhere\0Ffile.c\0\0").as_bytes())
}

fn done(tag: &str) -> Vec<u8> {
    message(b'C', format!("{tag}\0").as_bytes())
}

fn ready(state: u8) -> Vec<u8> {
    message(b'Z', &[state])
}

fn setting(name: &str, value: &str) -> Vec<u8> {
    message(b'S', format!("{name}\0{value}\0").as_bytes())
}

fn frontend() -> Frontend {
    Frontend::new(vec![("client_encoding".into(), "UTF8".into()), ("DateStyle".into(), "ISO, MDY".into())])
}

/// What is answered if these bytes arrive in parts of at most `step` bytes; None at the end of a statement's answer.
fn answers(frontend: &mut Frontend, bytes: &[u8], step: usize) -> Vec<Option<Answer>> {
    let mut found = Vec::new();
    for part in bytes.chunks(step) {
        let mut part = part;
        while !part.is_empty() {
            let space = frontend.space();
            let length = space.len().min(part.len());
            space[..length].copy_from_slice(&part[..length]);
            part = &part[length..];
            frontend.received(length);
            while !frontend.is_busy() && frontend.violation().is_none() && frontend.is_active() {
                let answer = frontend.take();
                if answer.is_none() && !found.is_empty() && found.last() == Some(&None) {
                    // In a pipeline without outstanding answers.
                    break;
                }
                found.push(answer);
            }
        }
    }
    found
}

fn tag(tag: &str) -> Option<Answer> {
    Some(Answer::Done(tag.into()))
}

const NONE: &[u8] = &[0, 1, 0, 1, 0, 0, 0, 1, 0, 1];

#[test]
fn answers_are_decoded_however_they_arrive() {
    let first = [
        message(b'2', &[]),
        row(&[Some(b"a"), None, Some(b"")]),
        message(b'N', b"SNOTICE\0\0"),
        row(&[]),
        done("SELECT 2"),
        setting("application_name", "x"),
        setting("DateStyle", "ISO, MDY"),
        ready(b'T'),
    ]
    .concat();
    let rows = [Some(Answer::Row(columns(&[Some(b"a"), None, Some(b"")]))), Some(Answer::Row(vec![]))];
    let texts = [
        done("BEGIN"),
        message(b'T', &[0, 0]),
        row(&[Some(b"1")]),
        done("SELECT 1"),
        error("ERROR", "22012", "x"),
        ready(b'E'),
    ];
    for step in [1, 2, 3, 7, 1000] {
        let mut frontend = frontend();
        frontend.execute(b"s\0", NONE, None);
        assert_eq!(answers(&mut frontend, &first, step), [&rows[..], &[tag("SELECT 2"), None]].concat());
        assert_eq!((frontend.transaction(), frontend.is_active()), (Transaction::Open, false));
        assert!(frontend.query(b"BEGIN; SELECT 1; SELECT 1/0\0", None));
        let found = answers(&mut frontend, &texts.concat(), step);
        let [begun, Some(Answer::Row(_)), selected, Some(Answer::Error(report)), None] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!([begun, selected], [&tag("BEGIN"), &tag("SELECT 1")]);
        assert_eq!((report.sqlstate, report.message.as_deref()), (Some(*b"22012"), Some("x")));
        assert_eq!((report.detail.as_deref(), report.context.as_deref()), (Some("detail"), Some("where")));
        assert!(!report.is_fatal());
        assert_eq!(frontend.transaction(), Transaction::Failed);
        assert_eq!((frontend.violation(), frontend.farewell()), (None, None));
    }
    assert_eq!(Answer::Done("INSERT 0 17".into()).affected(), 17);
    assert_eq!(Answer::Done("BEGIN".into()).affected(), 0);
}

#[test]
fn after_an_error_a_pipeline_is_skipped_to_its_synchronisation_point() {
    for step in [1, 5, 1000] {
        let mut frontend = frontend();
        assert!(frontend.enter_pipeline());
        frontend.prepare(b"s\0", b"SELECT 1\0", &[]);
        frontend.execute(b"s\0", NONE, None);
        frontend.prepare_and_execute(b"SELECT 1/0\0", &[], NONE, None);
        frontend.execute(b"s\0", NONE, None);
        assert!(!frontend.query(b"SELECT 1\0", None) && !frontend.exit_pipeline());
        let bytes = [
            message(b'1', &[]),
            message(b'2', &[]),
            done("SELECT 0"),
            message(b'1', &[]),
            error("ERROR", "22012", "x"),
        ];
        let found = answers(&mut frontend, &bytes.concat(), step);
        let [prepared, None, selected, None, Some(Answer::Error(_)), None, Some(Answer::Skipped), None] = &found[..]
        else {
            panic!("{found:?}")
        };
        assert_eq!([prepared, selected], [&tag(""), &tag("SELECT 0")]);
        // What is sent before the synchronisation point is skipped, too.
        frontend.prepare_and_execute(b"ROLLBACK\0", &[], NONE, None);
        frontend.sync();
        frontend.execute(b"s\0", NONE, None);
        let bytes = [ready(b'I'), message(b'2', &[]), done("SELECT 0")].concat();
        let found = answers(&mut frontend, &bytes, step);
        assert_eq!(found[..3], [Some(Answer::Skipped), None, Some(Answer::Sync)]);
        assert_eq!(found[3..5], [tag("SELECT 0"), None]);
        assert!(frontend.exit_pipeline() && !frontend.is_active());
    }
    // A commit fails at the synchronisation point, in a pipeline and outside of one.
    for pipeline in [true, false] {
        let mut frontend = frontend();
        if pipeline {
            assert!(frontend.enter_pipeline());
        }
        frontend.execute(b"s\0", NONE, None);
        if pipeline {
            frontend.sync();
        }
        let bytes = [message(b'2', &[]), done("INSERT 0 1"), error("ERROR", "23505", "x"), ready(b'I')].concat();
        let found = answers(&mut frontend, &bytes, 1000);
        let kinds: Vec<_> = found.iter().map(|answer| matches!(answer, Some(Answer::Error(_)))).collect();
        assert_eq!(kinds.iter().filter(|is_error| **is_error).count(), 1, "{found:?}");
        assert_eq!(frontend.violation(), None);
    }
}

#[test]
fn what_was_not_asked_for_is_a_violation() {
    let executing = || {
        let mut frontend = frontend();
        frontend.execute(b"s\0", NONE, None);
        frontend
    };
    let bound = message(b'2', &[]);
    let cases: [(&str, Vec<u8>); 22] = [
        ("a notification", message(b'A', b"\0\0\0\x01channel\0\0")),
        ("COPY", message(b'G', &[0, 0, 0])),
        ("COPY", message(b'H', &[0, 0, 0])),
        ("COPY", message(b'W', &[0, 0, 0])),
        ("a function's result", message(b'V', &[0; 4])),
        ("authentication", message(b'R', &[0; 4])),
        ("a key", message(b'K', &[0; 8])),
        ("a description", message(b'T', &[0; 2])),
        ("no data", message(b'n', &[])),
        ("a preparation", message(b'1', &[])),
        ("the end first", ready(b'I')),
        ("a row first", row(&[])),
        ("an end first", done("SELECT 1")),
        ("two ends", [bound.clone(), done("SELECT 1"), done("SELECT 1")].concat()),
        ("a row after the end", [bound.clone(), done("SELECT 1"), row(&[])].concat()),
        ("no state", [bound.clone(), done("SELECT 1"), ready(b'X')].concat()),
        ("a long row", [bound.clone(), header(b'D', MAX_ROW + 1)].concat()),
        ("a long tag", [bound.clone(), header(b'C', 1 << 30)].concat()),
        ("a row with more columns than it has", [bound.clone(), message(b'D', &[0, 2, 0, 0, 0, 0])].concat()),
        ("a row with less columns than it has", [bound.clone(), message(b'D', &[0, 0, 0, 0, 0, 0])].concat()),
        ("no length", vec![b'N', 0, 0, 0, 3]),
        ("an error without end", message(b'E', b"SERROR\0CXX000\0Mx")),
    ];
    for (what, bytes) in cases {
        for step in [1, 1000] {
            let mut frontend = executing();
            answers(&mut frontend, &bytes, step);
            assert!(frontend.violation().is_some(), "{what}: {:?}", String::from_utf8_lossy(&bytes));
            // Nothing more is decoded.
            answers(&mut frontend, &[ready(b'I'), ready(b'I')].concat(), step);
            assert_eq!(frontend.take(), None, "{what}");
        }
    }
    for (name, value, violates) in
        [("DateStyle", "German, DMY", true), ("client_encoding", "LATIN1", true), ("role", "none", false)]
    {
        let mut frontend = executing();
        answers(&mut frontend, &setting(name, value), 1000);
        assert_eq!(frontend.violation().is_some(), violates, "{name}");
    }
    // While nothing is asked for.
    let mut frontend = frontend();
    answers(&mut frontend, &error("FATAL", "57P01", "terminating"), 3);
    assert!(!frontend.is_busy());
    assert_eq!(frontend.farewell().and_then(|report| report.message.as_deref()), Some("terminating"));
    let mut frontend = self::frontend();
    answers(&mut frontend, &done("SELECT 1"), 3);
    assert!(!frontend.is_busy() && frontend.violation().is_some());
}

/// The bytes of the input buffer, while a message of this kind arrives without end.
fn flood(kind: u8, announced: usize, body: &[u8], most: usize) -> (usize, Frontend) {
    let mut frontend = frontend();
    frontend.execute(b"s\0", NONE, None);
    answers(&mut frontend, &[message(b'2', &[]), header(kind, announced)].concat(), 1000);
    let (mut largest, mut sent) = (0, 0);
    while sent < most && frontend.violation().is_none() {
        answers(&mut frontend, body, body.len());
        sent += body.len();
        largest = largest.max(frontend.space().len());
    }
    (largest, frontend)
}

#[test]
fn floods_take_no_memory() {
    let text = vec![b'x'; 1 << 20];
    // Messages of 1 GB.
    for kind in *b"NE" {
        let (largest, frontend) = flood(kind, 1 << 30, &text, 40 << 20);
        assert!(largest < 3 << 20, "{kind}: {largest}");
        assert_eq!(frontend.violation().is_some(), kind == b'N');
    }
    assert!(flood(b'D', 1 << 30, &text, 40 << 20).0 < 3 << 20);
    // Many messages.
    let notices = message(b'N', &text);
    let settings: Vec<u8> = (0..1000).flat_map(|n| setting(&format!("name{n}"), &"y".repeat(1000))).collect();
    for flood_of in [notices, settings] {
        let (largest, frontend) = flood(b'N', 0, &flood_of, 40 << 20);
        assert!(largest < 5 << 20, "{largest}");
        assert!(frontend.violation().is_some());
    }
    // Rows reset the limit.
    let mut frontend = frontend();
    frontend.execute(b"s\0", NONE, None);
    answers(&mut frontend, &message(b'2', &[]), 10);
    for _ in 0..40 {
        let found = answers(&mut frontend, &[message(b'N', &text), row(&[])].concat(), 1 << 16);
        assert_eq!(found.len(), 1);
    }
    assert_eq!(frontend.violation(), None);
}

#[test]
fn long_rows_and_texts() {
    let value = vec![7; 40 << 20];
    let mut frontend = frontend();
    frontend.execute(b"s\0", NONE, None);
    let bytes = [message(b'2', &[]), row(&[Some(&value)]), row(&[Some(b"x")]), done("SELECT 2"), ready(b'I')].concat();
    let found = answers(&mut frontend, &bytes, 1 << 19);
    assert_eq!(found.len(), 4);
    assert_eq!(found[0], Some(Answer::Row(columns(&[Some(&value)]))));
    assert!(frontend.space().len() < 3 << 20, "the memory of a long row is not kept");
    frontend.query(b"x\0", None);
    let text = "é".repeat(100_000);
    let found = answers(&mut frontend, &error("ERROR", "P0001", &text), 1000);
    let Some(Some(Answer::Error(report))) = found.first() else { panic!("{found:?}") };
    let message = report.message.as_deref().expect("a message");
    assert!(message.len() <= MAX_TEXT + 4 && message.ends_with("é …"), "{}", message.len());
    assert_eq!(report.detail.as_deref(), Some("detail"));
}

#[test]
fn rows_have_the_columns_that_were_declared() {
    const DECLARED: &[Column] = &[Column::INT8, Column::BYTES.or_null(), Column::INT4.or_null(), Column::BOOL];
    let (eight, four) = (&[0; 8][..], &[0; 4][..]);
    let good: [&[Option<&[u8]>]; 2] =
        [&[Some(eight), Some(b"any"), Some(four), Some(b"x")], &[Some(eight), None, None, Some(b"x")]];
    let wrong: [(&[Option<&[u8]>], &str); 8] = [
        (&[], "a row has 0 columns, not 4"),
        (&[Some(eight), None, None], "a row has 3 columns, not 4"),
        (&[Some(eight), None, None, Some(b"x"), None], "a row has 5 columns, not 4"),
        (&[None, None, None, Some(b"x")], "column 1 of a row is NULL"),
        (&[Some(eight), None, None, None], "column 4 of a row is NULL"),
        (&[Some(four), None, None, Some(b"x")], "column 1 of a row has 4 bytes, not 8"),
        (&[Some(eight), None, Some(b""), Some(b"x")], "column 3 of a row has 0 bytes, not 4"),
        (&[Some(eight), None, None, Some(b"")], "column 4 of a row has 0 bytes, not 1"),
    ];
    let ways: [fn(&mut Frontend); 3] = [
        |frontend| frontend.execute(b"s\0", NONE, Some(DECLARED.into())),
        |frontend| frontend.prepare_and_execute(b"x\0", &[], NONE, Some(DECLARED.to_vec().into())),
        |frontend| assert!(frontend.query(b"x\0", Some(DECLARED.into()))),
    ];
    for (begin, before) in ways.iter().zip([&[b'2'][..], b"12", b""]) {
        let executing = || {
            let mut frontend = frontend();
            begin(&mut frontend);
            let before: Vec<u8> = before.iter().flat_map(|kind| message(*kind, &[])).collect();
            answers(&mut frontend, &before, 100);
            frontend
        };
        let mut frontend = executing();
        assert_eq!(answers(&mut frontend, &good.map(row).concat(), 5).len(), 2);
        assert_eq!(frontend.violation(), None);
        for (columns, what) in wrong {
            let mut frontend = executing();
            answers(&mut frontend, &row(good[0]), 5);
            assert!(answers(&mut frontend, &row(columns), 5).is_empty());
            assert_eq!(frontend.violation(), Some(what));
        }
    }
    // The declaration of one statement is not that of the next.
    let mut frontend = frontend();
    frontend.enter_pipeline();
    frontend.execute(b"s\0", NONE, None);
    frontend.execute(b"s\0", NONE, Some((&[Column::BOOL]).into()));
    let first = [message(b'2', &[]), row(&[]), row(&[None]), done("SELECT 2"), message(b'2', &[]), row(&[Some(b"x")])];
    answers(&mut frontend, &first.concat(), 100);
    assert_eq!(frontend.violation(), None);
    answers(&mut frontend, &row(&[None]), 100);
    assert_eq!(frontend.violation(), Some("column 1 of a row is NULL"));
}

#[test]
fn statements_are_encoded() {
    let mut frontend = frontend();
    frontend.prepare_and_execute(b"SELECT $1\0", &[17], b"parameters", None);
    let expected = [
        message(b'P', b"\0SELECT $1\0\0\x01\0\0\0\x11"),
        message(b'B', b"\0\0parameters"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ];
    assert_eq!(frontend.unwritten(), expected.concat());
    frontend.wrote(3);
    assert_eq!(frontend.unwritten(), &expected.concat()[3..]);
    frontend.wrote(usize::MAX - 3);
    assert!(frontend.unwritten().is_empty());
    assert!(!frontend.enter_pipeline(), "an answer is outstanding");
}

proptest! {
    /// Whatever arrives, in whatever parts: no panic, the same answers, and little memory.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        messages in prop::collection::vec((prop::sample::select(b"12CDEINSZTAnst".to_vec()), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        garbage in prop::collection::vec(any::<u8>(), 0..40),
        step in 1usize..50,
    ) {
        let mut bytes: Vec<u8> = messages.iter().flat_map(|(kind, body)| message(*kind, body)).collect();
        bytes.extend(garbage);
        let run = |step: usize| {
            let mut frontend = frontend();
            frontend.enter_pipeline();
            frontend.prepare(b"s\0", b"\0", &[]);
            frontend.execute(b"s\0", NONE, None);
            frontend.sync();
            frontend.exit_pipeline();
            let found = answers(&mut frontend, &bytes, step);
            (found, frontend.violation().map(str::to_owned), frontend.space().len())
        };
        let (all, parts) = (run(1 << 20), run(step));
        prop_assert_eq!(&all.0, &parts.0);
        prop_assert_eq!(&all.1, &parts.1);
        prop_assert!(all.2 < 1 << 20 && parts.2 < 1 << 20);
    }
}
