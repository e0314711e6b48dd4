//! Commands for users and roles: see [`crate::operation::users`].
//!
//! A role of PostgreSQL is a user of every database. So the database of a request is only shown in answers.

use super::collections::filtered;
use super::reply::{Document, Reply, ReplyNode};
use super::request::{MAX_NAMED, Request};
use crate::operation::arguments::{Arguments, Form, Type, mismatch};
use crate::operation::users::{self, ADMIN, BUILT_IN, Known, Means, Right};
use crate::operation::{cluster, table};
use crate::pg::error::{Error, Result};
use crate::pg::server;
use docshard_core::error::{Kind, error};
use docshard_core::values::document::ext_json;
use serde_json::{Value as Json, json};

/// Grants or revokes rights.
fn change(request: &Request<'_>, name: &str, rights: &[Right], give: bool) -> Result<()> {
    rights.iter().try_for_each(|right| users::apply(name, right, give))?;
    let Some(options) = users::grants_of(rights, give) else { return Ok(()) };
    let (operation, run): (_, fn(&str, &Arguments<'_>) -> Result<Json>) = match give {
        true => (&table::GRANT_ACCESS, cluster::grant_access),
        false => (&table::REVOKE_ACCESS, cluster::revoke_access),
    };
    let options = Arguments::parse(&options, Form::Options(operation.function), operation.options)?;
    request.administer(operation, || run(name, &options)).map(|_| ())
}

/// Checks the caller's right to change grants, if there are any among these rights. Called before anything is changed.
fn check(request: &Request<'_>, rights: &[Right], give: bool) -> Result<()> {
    match users::grants_of(rights, give) {
        None => Ok(()),
        Some(_) => request.check_right(if give { &table::GRANT_ACCESS } else { &table::REVOKE_ACCESS }),
    }
}

fn held(name: &str, logs_in: bool) -> Result<Vec<Right>> {
    Ok(users::known(Some(&[name]), logs_in)?.into_iter().next().map_or_else(Vec::new, |known| known.rights))
}

pub fn create_user(request: &Request<'_>) -> Result<Reply> {
    let fields = &request.fields;
    users::check_mechanisms(fields)?;
    let Some(verifier) = fields.text("pwd") else {
        let message =
            "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db";
        return Err(Error::new(Kind::BadValue, message));
    };
    let rights = users::rights(request.db, fields.array("roles"))?;
    check(request, &rights, true)?;
    users::check_grants_of_new(&rights)?;
    users::create(request.target_text(), request.db, Some(verifier))?;
    change(request, request.target_text(), &rights, true)?;
    Ok(Reply::ok())
}

pub fn create_role(request: &Request<'_>) -> Result<Reply> {
    let mut rights = users::rights(request.db, request.fields.array("roles"))?;
    rights.extend(users::of_privileges(request.fields.array("privileges"))?);
    check(request, &rights, true)?;
    users::check_grants_of_new(&rights)?;
    users::create(request.target_text(), request.db, None)?;
    change(request, request.target_text(), &rights, true)?;
    Ok(Reply::ok())
}

pub fn update_user(request: &Request<'_>) -> Result<Reply> {
    let (name, fields) = (request.target_text(), &request.fields);
    users::check_mechanisms(fields)?;
    if fields.get("pwd").is_none() && fields.get("roles").is_none() {
        return Err(Error::new(Kind::BadValue, "Must specify at least one field to update in updateUser"));
    }
    users::check(name, request.db, true)?;
    if fields.get("roles").is_some() {
        let (wanted, held) = (users::rights(request.db, fields.array("roles"))?, held(name, true)?);
        let without =
            |these: &[Right], those: &[Right]| these.iter().filter(|right| !those.contains(right)).cloned().collect();
        let (taken, given): (Vec<Right>, Vec<Right>) = (without(&held, &wanted), without(&wanted, &held));
        check(request, &taken, false)?;
        check(request, &given, true)?;
        change(request, name, &taken, false)?;
        change(request, name, &given, true)?;
    }
    if let Some(verifier) = fields.text("pwd") {
        users::set_password(name, verifier)?;
    }
    Ok(Reply::ok())
}

/// `dropUser` and `dropRole`.
pub fn drop(request: &Request<'_>) -> Result<Reply> {
    let (name, logs_in) = (request.target_text(), request.spec.name == "dropUser");
    users::check(name, request.db, logs_in)?;
    let mut rights = held(name, logs_in)?;
    rights.retain(|right| matches!(right, Right::Grant(..)));
    check(request, &rights, false)?;
    change(request, name, &rights, false)?;
    users::drop(name)?;
    Ok(Reply::ok())
}

/// `grantRolesToUser` and `grantRolesToRole`.
pub fn grant_roles(request: &Request<'_>) -> Result<Reply> {
    let name = request.target_text();
    users::check(name, request.db, request.spec.name.ends_with("User"))?;
    let rights = users::rights(request.db, request.fields.array("roles"))?;
    check(request, &rights, true)?;
    change(request, name, &rights, true)?;
    Ok(Reply::ok())
}

/// `revokeRolesFromUser` and `revokeRolesFromRole`. Roles that the user or role does not have are left out.
pub fn revoke_roles(request: &Request<'_>) -> Result<Reply> {
    let (name, logs_in) = (request.target_text(), request.spec.name.ends_with("User"));
    users::check(name, request.db, logs_in)?;
    let held = held(name, logs_in)?;
    let named = users::rights(request.db, request.fields.array("roles"))?;
    let rights: Vec<Right> = named.into_iter().filter_map(|right| users::taken(right, &held)).collect();
    check(request, &rights, false)?;
    change(request, name, &rights, false)?;
    Ok(Reply::ok())
}

/// Returns the names that `usersInfo` or `rolesInfo` asks for, each with the database to show; None: all.
fn wanted<'a>(request: &Request<'a>, field: &str) -> Result<Option<Vec<(&'a str, &'a str)>>> {
    let one = |json: &'a Json| users::name_and_db(json, field, request.db);
    match request.target {
        Json::String(_) => one(request.target).map(|one| Some(vec![one])),
        Json::Array(several) if several.len() > MAX_NAMED => {
            Err(error!(Kind::BadValue, "{} names at most {MAX_NAMED} of them", request.name))
        }
        Json::Array(several) => several.iter().map(one).collect::<Result<_>>().map(Some),
        json if json.get("forAllDBs").is_some() => Ok(None),
        json if ext_json::document(json).is_some() => one(json).map(|one| Some(vec![one])),
        json if Type::Integer.takes(json) => Ok(None),
        other => Err(mismatch(&format!("{}.{}", request.name, request.name), other, Type::StringOrObject)),
    }
}

/// Returns the database in which a user or role is shown: that of the request's list if it names the user, or `otherwise`.
fn shown_in<'a>(wanted: Option<&[(&'a str, &'a str)]>, name: &str, otherwise: &'a str) -> &'a str {
    wanted.into_iter().flatten().find(|(known, _)| *known == name).map_or(otherwise, |(_, db)| db)
}

fn known(wanted: Option<&[(&str, &str)]>, logs_in: bool) -> Result<Vec<Known>> {
    let names: Option<Vec<&str>> = wanted.map(|wanted| wanted.iter().map(|(name, _)| *name).collect());
    users::known(names.as_deref(), logs_in)
}

fn roles(known: &Known) -> Json {
    known.rights.iter().map(users::shown).collect()
}

fn privileges(known: &Known) -> Json {
    known.rights.iter().filter_map(users::privilege).collect()
}

/// Returns the name of the current user, and its roles and privileges as MongoDB shows them.
pub fn current() -> Result<(String, Json, Json)> {
    let name = server::user_name(server::current_user());
    let known = users::known(Some(&[&name]), true)?.into_iter().next();
    let known = known.unwrap_or_else(|| Known { name, rights: Vec::new() });
    let (roles, privileges) = (roles(&known), privileges(&known));
    Ok((known.name, roles, privileges))
}

pub fn users_info(request: &Request<'_>) -> Result<Reply> {
    let wanted = wanted(request, "user")?;
    let db = if request.target.get("forAllDBs").is_some() { ADMIN } else { request.db };
    let documents = known(wanted.as_deref(), true)?.into_iter().map(|user| {
        let db = shown_in(wanted.as_deref(), &user.name, db);
        let (id, roles) = (format!("{db}.{}", user.name), roles(&user));
        let mut shown = json!({"_id": id, "user": user.name, "db": db, "roles": roles});
        if request.fields.flag("showPrivileges") {
            shown["inheritedRoles"] = roles;
            shown["inheritedPrivileges"] = privileges(&user);
        }
        shown["mechanisms"] = json!(["SCRAM-SHA-256"]);
        Document::made(&shown)
    });
    Ok(Reply::ok().with("users", ReplyNode::Documents(filtered(request, documents.collect::<Result<_>>()?)?)))
}

pub fn roles_info(request: &Request<'_>) -> Result<Reply> {
    let wanted = wanted(request, "role")?;
    let mut documents = Vec::new();
    for role in known(wanted.as_deref(), false)? {
        let db = shown_in(wanted.as_deref(), &role.name, request.db);
        let (id, roles) = (format!("{db}.{}", role.name), roles(&role));
        let mut shown = json!({"_id": id, "role": role.name, "db": db, "isBuiltin": false, "roles": roles, "inheritedRoles": roles});
        if request.fields.flag("showPrivileges") {
            let privileges = privileges(&role);
            shown["inheritedPrivileges"] = privileges.clone();
            shown["privileges"] = privileges;
        }
        documents.push(Document::made(&shown)?);
    }
    let is_wanted = |name: &str| match &wanted {
        None => request.fields.flag("showBuiltinRoles"),
        Some(wanted) => wanted.iter().any(|(known, _)| *known == name),
    };
    for (name, means) in BUILT_IN.iter().filter(|(name, means)| *means != Means::Refused && is_wanted(name)) {
        let db = shown_in(wanted.as_deref(), name, request.db);
        if db != ADMIN && !matches!(means, Means::Database(_)) {
            continue;
        }
        let shown = json!({"role": name, "db": db, "isBuiltin": true, "roles": [], "inheritedRoles": []});
        documents.push(Document::made(&shown)?);
    }
    Ok(Reply::ok().with("roles", ReplyNode::Documents(documents)))
}
