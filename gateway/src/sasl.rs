//! The conversation in which a client logs in: `saslStart`, `saslContinue`, and `speculativeAuthenticate` of `hello`; and `authenticate`, by which
//! a client with a certificate logs in.
//!
//! Any database may be named (`authSource`): roles belong to all of them.

use crate::backend::Proof;
use crate::certificate::{Certificate, MAX_ROLE};
use crate::log;
use crate::login::{self, Login, MECHANISM, Refusal};
use crate::pool::{Identity, Pools};
use crate::reply::{
    AUTHENTICATION_FAILED, BAD_VALUE, Failure, HOST_UNREACHABLE, MECHANISM_UNAVAILABLE, SHUTDOWN, STEPPED_DOWN,
};
use crate::router::Routers;
use crate::shares::{Share, Shares};
use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawBsonRef, RawDocument, doc};
use rustls_pki_types::CertificateDer;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The time for a whole conversation, in which it holds a connection to the router.
const CONVERSATION: Duration = Duration::from_secs(10);

/// The client's time for each message within a conversation.
const MESSAGE: Duration = Duration::from_secs(2);

const CONVERSATION_ID: i32 = 1;

/// The longest message of a conversation. PostgreSQL's own are far shorter.
const MAX_PAYLOAD: usize = 4096;

#[derive(Debug)]
pub struct Conversation {
    user: String,
    database: String,
    step: Step,
    skip_empty: bool,
    end: Instant,
    /// when the client's next message must have come
    pub until: Instant,
    _share: Option<Share>,
}

#[derive(Debug)]
enum Step {
    Challenged(Login),
    /// accepted; only an empty message of the client is still missing
    Accepted(Identity),
}

/// A client's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub identity: Identity,
    /// the database that the client named
    pub database: String,
}

/// The result of one message of a conversation.
#[derive(Debug)]
pub struct Turn {
    pub reply: Document,
    pub conversation: Option<Conversation>,
    /// the user that is logged in now
    pub user: Option<User>,
}

fn failed() -> Failure {
    Failure::new(AUTHENTICATION_FAILED, "Authentication failed.")
}

/// A wrong password and an unknown role look the same to the client; the log tells the operator more.
fn refused(user: &str, refusal: &Refusal) -> Failure {
    log::LOGINS.line(format_args!("login of {user:?}: {refusal}"));
    match refusal {
        // 08P01: a malformed message
        Refusal::Server(error) if error.sqlstate.starts_with("28") || error.sqlstate == "08P01" => failed(),
        Refusal::Server(error) if error.sqlstate.starts_with("42") || error.sqlstate == "3F000" => {
            let message = format!("the role cannot use docshard of this version at the router: {}", error.message);
            Failure::new(AUTHENTICATION_FAILED, message)
        }
        Refusal::Server(error) if error.is_of_restart() => {
            Failure::new(SHUTDOWN, format!("the router refuses the login: {}", error.message))
        }
        Refusal::Standby => Failure::new(STEPPED_DOWN, "no router is a primary"),
        Refusal::Server(error) => {
            Failure::new(HOST_UNREACHABLE, format!("the router refuses the login: {}", error.message))
        }
        Refusal::Io(_) => Failure::new(HOST_UNREACHABLE, "no router can be reached"),
        Refusal::Unchecked => Failure::new(AUTHENTICATION_FAILED, refusal.to_string()),
        Refusal::Asked => failed(),
    }
}

/// The mechanism of clients with a certificate.
const CERTIFICATE: &str = "MONGODB-X509";

/// The database of users with a certificate.
const EXTERNAL: &str = "$external";

/// The error of a mechanism that the gateway does not have, or that is not configured.
fn unavailable(mechanism: &str) -> Failure {
    let message =
        format!("Received authentication for mechanism {mechanism:.40} which is not enabled; use {MECHANISM}");
    Failure::new(MECHANISM_UNAVAILABLE, message)
}

fn payload(document: &RawDocument) -> Result<&[u8], Failure> {
    // Some drivers send text.
    let bytes = document.get_binary("payload").map(|binary| binary.bytes);
    let bytes = bytes.or_else(|_| document.get_str("payload").map(str::as_bytes));
    bytes
        .ok()
        .filter(|bytes| bytes.len() <= MAX_PAYLOAD)
        .ok_or_else(|| Failure::new(BAD_VALUE, "payload is missing or too long"))
}

/// The user of a first message: `n,,n=USER,r=…`, in which `=2C` is a comma and `=3D` an equals sign. PostgreSQL would truncate a name that is
/// longer than a role's, so one role would have several names here.
fn user_of(first: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(first).ok()?;
    // Accepts neither channel binding nor an authorization identity.
    let name = text.strip_prefix("n,,n=").or_else(|| text.strip_prefix("y,,n="))?.split_once(",r=")?.0;
    let mut user = String::new();
    let mut parts = name.split('=');
    user += parts.next()?;
    for part in parts {
        let (sign, rest) = part
            .strip_prefix("2C")
            .map(|rest| (',', rest))
            .or_else(|| part.strip_prefix("3D").map(|rest| ('=', rest)))?;
        user.push(sign);
        user += rest;
    }
    ((1..=MAX_ROLE).contains(&user.len()) && !user.contains('\0')).then_some(user)
}

fn reply(done: bool, bytes: Vec<u8>) -> Document {
    let payload = Binary { subtype: BinarySubtype::Generic, bytes };
    doc! { "conversationId": CONVERSATION_ID, "done": done, "payload": payload }
}

/// The client's address, the limit of logins at a time, the routers, and the pools that sessions go to.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub client: IpAddr,
    pub routers: &'a Routers,
    pub pools: &'a std::sync::Arc<Pools>,
    pub logins: &'a Shares<IpAddr>,
    /// `--client-ca` is given
    pub takes_certificates: bool,
    /// how long a login waits for a router that restarts (`--hold-timeout`)
    pub hold: Duration,
}

fn next(end: Instant) -> Instant {
    end.min(Instant::now() + MESSAGE)
}

pub async fn start(context: Context<'_>, document: &RawDocument, database: &str) -> Result<Turn, Failure> {
    let mechanism = document.get_str("mechanism").unwrap_or_default();
    if mechanism != MECHANISM {
        return Err(unavailable(mechanism));
    }
    let first = payload(document)?;
    let user = user_of(first).ok_or_else(failed)?;
    let options = document.get_document("options").ok();
    let skip_empty = options.and_then(|options| options.get_bool("skipEmptyExchange").ok()).unwrap_or(false);
    let share = share(context).await?;
    let (login, challenge) =
        timeout(CONVERSATION + context.hold, Login::start(context.routers, context.hold, &user, first))
            .await
            .map_err(|_| failed())?
            .map_err(|refusal| refused(&user, &refusal))?;
    let end = Instant::now() + CONVERSATION;
    let database = database.to_owned();
    let (step, until) = (Step::Challenged(login), next(end));
    let conversation = Conversation { user, database, step, skip_empty, end, until, _share: Some(share) };
    Ok(Turn { reply: reply(false, challenge), conversation: Some(conversation), user: None })
}

/// Waits until another login may begin.
async fn share(context: Context<'_>) -> Result<Share, Failure> {
    let busy = |_| Failure::new(HOST_UNREACHABLE, "too many logins at a time (--max-logins)");
    timeout(CONVERSATION + context.hold, context.logins.take(&context.client, 1)).await.map_err(busy)
}

/// True if a first message logs a client in by its certificate.
pub fn is_of_certificate(first: &RawDocument) -> bool {
    matches!(first.iter().next(), Some(Ok((name, _))) if name.as_str() == "authenticate")
}

/// Logs a client in by the certificate that it has shown, in one message.
pub async fn authenticate(
    context: Context<'_>,
    document: &RawDocument,
    shown: Option<&CertificateDer<'_>>,
) -> Result<Turn, Failure> {
    let mechanism = document.get_str("mechanism").unwrap_or_default();
    if mechanism != CERTIFICATE || !context.takes_certificates {
        return Err(unavailable(mechanism));
    }
    let shown = shown.ok_or_else(|| refused_certificate(context, "the client has shown none"))?;
    let certificate = Certificate::of(shown).map_err(|reason| refused_certificate(context, &reason))?;
    match document.get("user") {
        Ok(None) => {}
        Ok(Some(RawBsonRef::String(user))) if certificate.is_of(user) => {}
        _ => return Err(refused_certificate(context, "its subject is not the user that the client names")),
    }
    let role = certificate.role;
    let _share = share(context).await?;
    let proof = Proof::Certificate(certificate.digest);
    let session = timeout(CONVERSATION + context.hold, login::certified(context.routers, context.hold, &role, &proof))
        .await
        .map_err(|_| failed())?
        .map_err(|refusal| refused(&role, &refusal))?;
    let generation = Some(context.pools.add(&role, session).ok_or_else(full)?);
    let reply = doc! { "dbname": EXTERNAL, "user": &role };
    let user = Some(User { identity: Identity { role, generation }, database: EXTERNAL.to_owned() });
    Ok(Turn { reply, conversation: None, user })
}

fn refused_certificate(context: Context<'_>, reason: &str) -> Failure {
    log::LOGINS.line(format_args!("login by certificate from {}: {reason}", context.client));
    failed()
}

pub async fn proceed(
    context: Context<'_>,
    conversation: Option<Conversation>,
    document: &RawDocument,
) -> Result<Turn, Failure> {
    let conversation = conversation.ok_or_else(|| Failure::new(PROTOCOL, "No SASL session state found"))?;
    let bytes = payload(document)?;
    let Conversation { user, database, step, skip_empty, end, _share, .. } = conversation;
    let login = match step {
        Step::Accepted(identity) if bytes.is_empty() => {
            let user = Some(User { identity, database });
            return Ok(Turn { reply: reply(true, Vec::new()), conversation: None, user });
        }
        Step::Accepted(_) => return Err(failed()),
        Step::Challenged(login) => login,
    };
    let (session, signature) = timeout_at(end + context.hold, login.finish(context.routers, context.hold, bytes))
        .await
        .map_err(|_| failed())?
        .map_err(|refusal| refused(&user, &refusal))?;
    let generation = Some(context.pools.add(&user, session).ok_or_else(full)?);
    let identity = Identity { role: user.clone(), generation };
    if skip_empty {
        let user = Some(User { identity, database });
        return Ok(Turn { reply: reply(true, signature), conversation: None, user });
    }
    let end = end.max(Instant::now() + MESSAGE);
    let (step, until) = (Step::Accepted(identity), next(end));
    let conversation = Conversation { user, database, step, skip_empty, end, until, _share: None };
    Ok(Turn { reply: reply(false, signature), conversation: Some(conversation), user: None })
}

const PROTOCOL: (i32, &str) = crate::reply::PROTOCOL_ERROR;

fn full() -> Failure {
    Failure::new(HOST_UNREACHABLE, "all connections to the router are in use by other roles (--pool-size)")
}

#[cfg(test)]
mod tests {
    use super::user_of;

    #[test]
    fn the_user_is_in_the_first_message() {
        let user = |first: &str| user_of(first.as_bytes());
        assert_eq!(user("n,,n=ann,r=abc").as_deref(), Some("ann"));
        assert_eq!(user("n,,n=a=2Cb=3Dc,r=abc").as_deref(), Some("a,b=c"));
        assert_eq!(user("n,,n=märz,r=abc").as_deref(), Some("märz"));
        for wrong in [
            "",
            "n,,n=,r=abc",
            "n,a=root,n=ann,r=abc",
            "p=tls-unique,,n=ann,r=a",
            "n,,n=a=2cb,r=x",
            "n,,n=a\0b,r=x",
            "n,,r=x",
        ] {
            assert_eq!(user(wrong), None, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn names_come_back(name in "[^\0]{1,20}") {
            let escaped = name.replace('=', "=3D").replace(',', "=2C");
            proptest::prop_assert_eq!(user_of(format!("n,,n={escaped},r=x").as_bytes()), Some(name));
        }
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60)) {
            let _ = user_of(&bytes);
        }
    }
}
