//! The command explain.

use super::reply::Reply;
use super::request::Request;
use crate::operation::arguments::{Arguments, Form};
use crate::operation::explaining::{self, ExplainedWrite, Verbosity};
use crate::operation::reading;
use crate::operation::request_parts::{Shared, Specification};
use crate::operation::table;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, bail, error};
use serde_json::{Value as Json, json};

const EXPLAINED: &[&str] = &["find", "count", "distinct", "aggregate", "update", "delete", "findAndModify"];

/// Writes are never executed: the plan shows how their documents are found.
pub fn explain(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::EXPLAIN)?;
    let verbosity = request.fields.text("verbosity").map(Verbosity::parse).transpose()?.unwrap_or_default();
    let inner = Request::parse(request.db, request.target, request.commands, false)?;
    if inner.spec.name == "aggregate" {
        if inner.fields.get("explain").is_some() {
            let message = "The 'explain' option is illegal when a explain verbosity is also provided";
            return Err(Error::new(Kind::FailedToParse, message));
        }
        return Ok(Reply::of(super::aggregate::explain(&inner, verbosity)?));
    }
    let arguments = element(&inner)?.unwrap_or(inner.fields);
    let filter = Specification::of(arguments.get("filter"));
    let namespace = inner.namespace()?;
    let shared = Shared::of(&arguments, inner.fields.get("let"));
    let stages = || match inner.spec.name {
        "find" => reading::find_stages(filter, &arguments),
        "count" => super::documents::counted(&inner)?.stages(),
        _ => reading::distinct_stages(inner.fields.text("key").unwrap_or_default(), filter),
    };
    // Only reads can be of a view: writes of views are refused later.
    if ["find", "count", "distinct"].contains(&inner.spec.name)
        && let Some(explained) = reading::explain_view(&namespace, stages, shared, verbosity)?
    {
        return Ok(Reply::of(explained));
    }
    let plan = match inner.spec.name {
        "find" => {
            arguments.count("limit")?;
            explaining::find(&namespace, filter, &arguments, verbosity)?
        }
        "count" => explaining::count(&namespace, &super::documents::counted(&inner)?, verbosity)?,
        "distinct" => {
            let field = inner.fields.text("key").unwrap_or_default();
            explaining::distinct(&namespace, field, (filter, &shared), verbosity)?
        }
        name => {
            let deletes = name == "delete" || inner.fields.flag("remove");
            let write = ExplainedWrite { filter, shared, deletes, batch: name != "findAndModify" };
            explaining::write(&namespace, &write, verbosity)?
        }
    };
    reply(request, &namespace, &filter.text(), plan)
}

fn reply(request: &Request<'_>, namespace: &str, filter: &str, mut plan: Json) -> Result<Reply> {
    let run = plan.as_object_mut().and_then(|plan| plan.remove("executionStats"));
    let mut reply = json!({
        "queryPlanner": {
            "namespace": namespace,
            "parsedQuery": { "text": filter },
            "winningPlan": plan,
        },
    });
    if let Some(run) = run {
        reply["executionStats"] = run;
    }
    reply["serverInfo"] = super::information::server()?;
    reply["command"] = json!({ "text": request.target.to_string() });
    Ok(Reply::of(reply))
}

/// The only write of a batch; None for commands that have no batch.
fn element<'r>(inner: &Request<'r>) -> Result<Option<Arguments<'r>>> {
    let first = |list: &str, path, known| -> Result<_> {
        let operations = inner.fields.array(list);
        if operations.len() != 1 {
            bail!(Kind::InvalidLength, "explained write batches must be of size 1");
        }
        let parse = |json| Arguments::parse(json, Form::Command(path), known);
        operations.first().map(parse).transpose()
    };
    match inner.spec.name {
        "update" => first("updates", "update.updates", table::UPDATE_ELEMENT),
        "delete" => first("deletes", "delete.deletes", table::DELETE_ELEMENT),
        name if EXPLAINED.contains(&name) => Ok(None),
        other => {
            let error = error!(Kind::CommandNotFound, "Explain failed due to unknown command: {other}");
            Err(error.with_hint(format!("Commands that can be explained: {}.", EXPLAINED.join(", "))))
        }
    }
}
