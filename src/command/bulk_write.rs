//! The command bulkWrite: inserts, updates and deletions in several collections. Each succeeds or fails by itself, and its result is a
//! document of a cursor.
//!
//! Consecutive inserts into one collection run as one batch.

use super::cursors::{self, FIRST_BATCH, Opening};
use super::failure;
use super::find::{batch_size, size};
use super::numbered;
use super::reply::{Document, Reply, integer};
use super::request::Request;
use super::write::kind_of_update;
use crate::catalog::collections::namespace::{self, check_writable};
use crate::operation::arguments::{Arguments, Fields, Form};
use crate::operation::request_parts::Specification;
use crate::operation::table::{self, Operation};
use crate::operation::writing::{self, DocumentWrite, each};
use crate::pg::error::Result;
use crate::router::writes::insert::WriteError;
use docshard_core::error::{Kind, bail, ensure};
use docshard_core::query::update::Style;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write;
use serde_json::Value as Json;

/// The namespace of the cursor over the results.
const CURSOR: &str = "admin.$cmd.bulkWrite";

/// The kinds of writes: the first field of each, its path in errors, and its fields.
const KINDS: &[(&str, &str, Fields)] = &[
    ("insert", "bulkWrite.ops.insert", table::BULK_INSERT),
    ("update", "bulkWrite.ops.update", table::BULK_UPDATE),
    ("delete", "bulkWrite.ops.delete", table::BULK_DELETE),
];

/// One write of the command.
struct Write<'a> {
    kind: &'static str,
    namespace: &'a str,
    arguments: Arguments<'a>,
}

impl<'a> Write<'a> {
    fn parse(index: usize, json: &'a Json, namespaces: &[&'a str]) -> Result<Self> {
        let first = json.as_object().and_then(|fields| fields.keys().next()).map(String::as_str);
        let Some((kind, path, known)) = KINDS.iter().find(|(kind, _, _)| first == Some(kind)) else {
            bail!(Kind::FailedToParse, "bulkWrite.ops.{index} must begin with insert, update or delete");
        };
        let arguments = Arguments::parse(json, Form::Command(path), known)?;
        let given = arguments.safe_integer("namespace").and_then(|position| usize::try_from(position).ok());
        let Some(namespace) = given.and_then(|position| namespaces.get(position)) else {
            bail!(Kind::BadValue, "BulkWrite ops entry {index} has an invalid nsInfo index.");
        };
        arguments.check_conflicts(table::UPDATE_CONFLICTS)?;
        if *kind == "update" {
            let update = arguments.raw("update").unwrap_or(&Json::Null);
            let is_update = update.is_array() || ext_json::document(update).is_some();
            ensure!(is_update, Kind::FailedToParse, "Update argument must be either an object or an array");
        }
        Ok(Self { kind, namespace, arguments })
    }

    /// The operation whose right the caller needs.
    fn operation(&self) -> &'static Operation {
        match self.kind {
            "insert" => &table::INSERT_MANY,
            "update" => kind_of_update(&self.arguments),
            _ if self.arguments.flag("multi") => &table::DELETE_MANY,
            _ => &table::DELETE_ONE,
        }
    }

    fn creates_collection(&self) -> bool {
        self.kind == "insert" || self.arguments.flag("upsert")
    }

    fn is_insert_into(&self, namespace: &str) -> bool {
        self.kind == "insert" && self.namespace == namespace
    }
}

/// The results so far.
#[derive(Default)]
struct Results {
    /// the documents with the positions of their writes
    documents: Vec<(usize, Document)>,
    errors: i64,
    inserted: i64,
    matched: i64,
    modified: i64,
    upserted: i64,
    deleted: i64,
}

pub fn bulk_write(request: &Request<'_>) -> Result<Reply> {
    let (fields, batch) = (&request.fields, size(batch_size(request)?, FIRST_BATCH));
    let namespaces = fields.array("nsInfo").iter().enumerate().map(|(at, json)| {
        let info = Arguments::parse(json, Form::Command("bulkWrite.nsInfo"), table::NAMESPACE_INFO)?;
        info.check_conflicts(&[])?;
        let name = info.text("ns").unwrap_or_default();
        namespace::split(name)?;
        check_writable(name)?;
        ensure!(at < writing::MAX_BATCH, Kind::InvalidLength, "nsInfo has more than {} elements", writing::MAX_BATCH);
        Ok(name)
    });
    let namespaces = namespaces.collect::<Result<Vec<_>>>()?;
    let operations = fields.array("ops");
    writing::check_size(operations.len())?;
    let parse = |(index, json)| Write::parse(index, json, &namespaces);
    let writes = operations.iter().enumerate().map(parse).collect::<Result<Vec<_>>>()?;
    for needed in request.spec.operations {
        if writes.iter().any(|write| std::ptr::eq(write.operation(), *needed)) {
            request.check_right(needed)?;
        }
    }
    // A claim needs an existing collection. It is made at that of the first write that may create one, and creates it if it is
    // missing. If no write may create one, it is made at the first collection that exists.
    let creating = writes.iter().find(|write| write.creates_collection());
    for write in creating.map_or(&writes[..], std::slice::from_ref) {
        numbered::claim(write.namespace, creating.is_some())?;
    }
    let (ordered, errors_only) = (fields.flag("ordered"), fields.flag("errorsOnly"));
    let (mut results, mut next) = (Results::default(), 0);
    while let Some(first) = writes.get(next) {
        let inserts = writes[next..].iter().take_while(|write| write.is_insert_into(first.namespace)).count();
        let some = &writes[next..next + inserts.max(1)];
        let failed = match inserts {
            0 => each(some, ordered, |_, write| results.write(next, write, fields.get("let"), errors_only))?,
            _ => results.insert(next, some, ordered, errors_only)?,
        };
        let ends = ordered && !failed.is_empty();
        for failed in failed {
            results.fail(next + failed.index, some[failed.index].kind, failed)?;
        }
        if ends {
            break;
        }
        next += some.len();
    }
    results.reply(batch)
}

impl Results {
    fn write(&mut self, index: usize, write: &Write<'_>, variables: Option<&Json>, errors_only: bool) -> Result<()> {
        let arguments = &write.arguments;
        let specification = |name| Specification::of(arguments.get(name));
        let update = (write.kind == "update").then(|| (specification("update"), Style::Either));
        let many = arguments.flag("multi");
        let done =
            DocumentWrite::of(specification("filter"), update, many, arguments, variables).run(write.namespace)?;
        let mut shown = Vec::new();
        if write.kind == "delete" {
            self.deleted += done.matched;
            shown.push(("n", integer(done.matched)));
        } else {
            let upserts = i64::from(done.upserted.is_some());
            (self.matched, self.modified) = (self.matched + done.matched, self.modified + done.modified);
            self.upserted += upserts;
            shown.extend([("n", integer(done.matched + upserts)), ("nModified", integer(done.modified))]);
            let upserted = done.upserted.map(|id| Value::fixed_object(vec![("_id".to_owned(), id)]));
            shown.extend(upserted.map(|upserted| ("upserted", upserted)));
        }
        if errors_only { Ok(()) } else { self.show(index, true, shown) }
    }

    /// Runs consecutive inserts into one collection; returns those that failed.
    fn insert(
        &mut self,
        first: usize,
        writes: &[Write<'_>],
        ordered: bool,
        errors_only: bool,
    ) -> Result<Vec<WriteError>> {
        let namespace = writes[0].namespace;
        let document = |write: &Write<'_>| writing::storable(write.arguments.get("document").unwrap_or(&Json::Null));
        let documents = writes.iter().map(|write| Ok(document(write)));
        let (ids, failed) = writing::insert_batch(namespace, documents, ordered)?;
        self.inserted += ids.len() as i64;
        // In an ordered batch, only the inserts before the first failure have succeeded.
        let tried = failed.first().map_or(writes.len(), |failed| if ordered { failed.index } else { writes.len() });
        let has_failed = |at| failed.binary_search_by_key(&at, |failed| failed.index).is_ok();
        for at in (0..tried).filter(|at| !errors_only && !has_failed(*at)) {
            self.show(first + at, true, vec![("n", integer(1))])?;
        }
        Ok(failed)
    }

    fn fail(&mut self, index: usize, kind: &str, failed: WriteError) -> Result<()> {
        self.errors += 1;
        let fields = failure::write_error_fields(&failed);
        let fields = fields.into_iter().filter(|(name, _)| name != "index");
        let mut shown: Vec<(String, Value)> = fields.collect();
        shown.push(("n".to_owned(), integer(0)));
        if kind == "update" {
            shown.push(("nModified".to_owned(), integer(0)));
        }
        self.show(index, false, shown)
    }

    fn show<N: Into<String>>(&mut self, index: usize, ok: bool, fields: Vec<(N, Value)>) -> Result<()> {
        let mut shown = vec![
            ("ok".to_owned(), Value::Number(Number::Double(if ok { 1.0 } else { 0.0 }))),
            ("idx".to_owned(), integer(index as i64)),
        ];
        shown.extend(fields.into_iter().map(|(name, value)| (name.into(), value)));
        let value = Value::fixed_object(shown);
        let bytes = write::value(&value)?;
        self.documents.push((index, Document::Made(value, bytes)));
        Ok(())
    }

    fn reply(mut self, batch: usize) -> Result<Reply> {
        // The failures of a batch of inserts were added after its successes.
        self.documents.sort_by_key(|(index, _)| *index);
        let documents = self.documents.into_iter().map(|(_, document)| document).collect();
        let opening = Opening { namespace: CURSOR, batch, single_batch: false, may_expire: true, sole: false };
        let reply = cursors::open_over(&opening, documents, false)?.reply("firstBatch", CURSOR);
        Ok(reply
            .with("nErrors", integer(self.errors))
            .with("nInserted", integer(self.inserted))
            .with("nMatched", integer(self.matched))
            .with("nModified", integer(self.modified))
            .with("nUpserted", integer(self.upserted))
            .with("nDeleted", integer(self.deleted)))
    }
}
