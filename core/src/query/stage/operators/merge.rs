//! `$merge` and `$out`: the last stage of a pipeline. It returns its input unchanged; the caller that runs the pipeline writes the
//! documents.

use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::Binding;
use crate::query::expression::{Expression, check_variable_name};
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape, given};
use crate::query::stage::runtime::sink::{Merging, NEW, Sink, TargetCollection, WhenMatched, WhenNotMatched};
use crate::query::stage::runtime::stream::Input;
use crate::values::document::ext_json;
use crate::values::path;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use std::sync::Arc;

/// Parses the argument of `$merge`.
fn merging(parser: &Parser<'_>, json: &Json) -> Result<Merging> {
    if let Json::String(name) = json {
        return Ok(Merging {
            target: target(parser, None, name)?,
            on: None,
            matched: WhenMatched::Merge,
            not_matched: WhenNotMatched::Insert,
            variables: Vec::new(),
        });
    }
    let known = ["into", "on", "let", "whenMatched", "whenNotMatched"];
    let fields = parser.named(json, &known, [Kind::TypeMismatch, Kind::UnknownOption])?;
    let Some(into) = fields.get("into") else {
        bail!(40414, "BSON field '$merge.into' is missing but a required field")
    };
    let matched = fields.get("whenMatched").map_or(Ok(WhenMatched::Merge), when_matched)?;
    let not_matched = given(fields, "whenNotMatched").map_or(Ok(WhenNotMatched::Insert), when_not_matched)?;
    let inserts_only = matches!(matched, WhenMatched::KeepExisting | WhenMatched::Fail);
    ensure!(
        not_matched == WhenNotMatched::Insert || !inserts_only,
        51181,
        "Combination of $merge modes 'whenMatched: {}' and 'whenNotMatched: {}' is not supported",
        matched.name(),
        not_matched.name()
    );
    Ok(Merging {
        target: into_target(parser, into)?,
        on: fields.get("on").map(on_fields).transpose()?,
        variables: variables(parser, &matched, given(fields, "let"))?,
        matched,
        not_matched,
    })
}

fn when_matched(json: &Json) -> Result<WhenMatched> {
    Ok(match json {
        Json::Array(stages) => WhenMatched::Pipeline(stages.clone()),
        Json::String(name) => match name.as_str() {
            "replace" => WhenMatched::Replace,
            "keepExisting" => WhenMatched::KeepExisting,
            "merge" => WhenMatched::Merge,
            "fail" => WhenMatched::Fail,
            _ => bail!(Kind::BadValue, "Enumeration value '{name}' for field 'whenMatched' is not a valid value."),
        },
        _ => bail!(51191, "$merge 'whenMatched' field must be either a string or an array, but found {json}"),
    })
}

fn when_not_matched(json: &Json) -> Result<WhenNotMatched> {
    let Json::String(name) = json else {
        bail!(Kind::TypeMismatch, "BSON field '$merge.whenNotMatched' must be a string, but found: {json}")
    };
    Ok(match name.as_str() {
        "insert" => WhenNotMatched::Insert,
        "discard" => WhenNotMatched::Discard,
        "fail" => WhenNotMatched::Fail,
        _ => bail!(Kind::BadValue, "Enumeration value '{name}' for field 'whenNotMatched' is not a valid value."),
    })
}

fn into_target(parser: &Parser<'_>, json: &Json) -> Result<TargetCollection> {
    match json {
        Json::String(name) if name.is_empty() => {
            bail!(5786800, "{} 'into' field cannot be an empty string", parser.name)
        }
        Json::String(name) => target(parser, None, name),
        Json::Object(fields) if ext_json::is_document(fields) => {
            let fields = parser.named(json, &["db", "coll"], [Kind::TypeMismatch, Kind::UnknownOption])?;
            let text = |name: &str| match fields.get(name) {
                None | Some(Json::Null) => Ok(None),
                Some(Json::String(text)) => Ok(Some(text.as_str())),
                Some(other) => Err(error!(Kind::TypeMismatch, "'into.{name}' must be a string, but found: {other}")),
            };
            let Some(collection) = text("coll")?.filter(|name| !name.is_empty()) else {
                bail!(
                    5786801,
                    "{} 'into' field must specify a 'coll' that is not empty, null or undefined",
                    parser.name
                )
            };
            target(parser, text("db")?, collection)
        }
        _ => bail!(51178, "{} 'into' field must be either a string or an object, but found {json}", parser.name),
    }
}

fn on_fields(json: &Json) -> Result<Vec<String>> {
    let names = match json {
        Json::String(_) => std::slice::from_ref(json),
        Json::Array(names) => names,
        _ => bail!(51186, "$merge 'on' field must be either a string or an array of strings, but found {json}"),
    };
    ensure!(!names.is_empty(), 51187, "If explicitly specifying $merge 'on', must include at least one field");
    let mut fields: Vec<String> = Vec::with_capacity(names.len());
    let mut known = HashSet::new();
    for name in names {
        budget::step();
        let Json::String(name) = name else {
            bail!(51134, "$merge 'on' array elements must be strings, but found {name}")
        };
        path::check_field_path(name)?;
        ensure!(known.insert(name), 31465, "Found a duplicate field '{name}'");
        fields.push(name.clone());
    }
    Ok(fields)
}

/// Parses the variables of a `whenMatched` pipeline, and checks that pipeline.
fn variables(parser: &Parser<'_>, matched: &WhenMatched, json: Option<&Json>) -> Result<Vec<(String, Expression)>> {
    let environment = parser.environment;
    let WhenMatched::Pipeline(stages) = matched else {
        ensure!(json.is_none(), 51199, "Cannot use 'let' variables with 'whenMatched: {}' mode", matched.name());
        return Ok(Vec::new());
    };
    let mut variables = vec![(NEW.to_owned(), Expression::parse(&json!("$$ROOT"), environment)?)];
    let given = match json {
        None => None,
        Some(Json::Object(fields)) if ext_json::is_document(fields) => Some(fields),
        Some(other) => bail!(Kind::TypeMismatch, "BSON field '$merge.let' must be an object, but found: {other}"),
    };
    for (name, json) in given.into_iter().flatten() {
        check_variable_name(name)?;
        ensure!(
            name != NEW || json.as_str() == Some("$$ROOT"),
            51273,
            "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'"
        );
        if name != NEW {
            variables.push((name.clone(), Expression::parse(json, environment)?));
        }
    }
    let unknown = variables.iter().map(|(name, _)| (name.clone(), Binding::Open));
    (parser.check_update)(stages, &environment.with_bindings(unknown))?;
    Ok(variables)
}

/// `$merge` or `$out`
#[derive(Debug)]
struct Write(Sink);

impl Operation for Write {
    fn fields(&self) -> Fields {
        Fields { read: None, written: Written::default() }
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, _: &Context) -> Result<Input<'s>> {
        Ok(input)
    }

    fn needs_router(&self) -> bool {
        true
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sink(&self.0)
    }
}

pub(in crate::query::stage) fn merge(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    Parser::one(Write(Sink::Merge(Box::new(merging(parser, json)?))))
}

pub(in crate::query::stage) fn out(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let target = match json {
        Json::String(name) => target(parser, None, name)?,
        Json::Object(fields) if ext_json::is_document(fields) => {
            let known = ["db", "coll", "timeseries"];
            let fields = parser.named(json, &known, [Kind::TypeMismatch, Kind::UnknownOption])?;
            if let Some(series) = given(fields, "timeseries") {
                let is_document = ext_json::document(series).is_some();
                ensure!(is_document, Kind::TypeMismatch, "BSON field '$out.timeseries' must be an object");
                bail!(Kind::NotImplemented, "$out does not support timeseries");
            }
            let (Some(database), Some(collection)) = (given(fields, "db"), given(fields, "coll")) else {
                bail!(40414, "BSON field '$out.db' or '$out.coll' is missing but a required field")
            };
            let (Json::String(database), Json::String(collection)) = (database, collection) else {
                bail!(Kind::TypeMismatch, "$out's db and coll must be strings, but found: {json}")
            };
            target(parser, Some(database), collection)?
        }
        _ => bail!(16990, "$out only supports a string or object argument, but found: {json}"),
    };
    Parser::one(Write(Sink::Out(target)))
}

/// Returns the target collection. An empty database name means the pipeline's own database.
fn target(parser: &Parser<'_>, database: Option<&str>, collection: &str) -> Result<TargetCollection> {
    if collection.is_empty() {
        bail!(Kind::InvalidNamespace, "Invalid {} target namespace: the collection's name is empty", parser.name);
    }
    let database = database.filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(TargetCollection { database, collection: collection.to_owned() })
}
