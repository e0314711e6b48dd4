//! Logins at a router.
//!
//! A client's SCRAM-SHA-256 messages are relayed: they are the same in MongoDB's and in PostgreSQL's protocol. PostgreSQL ignores the
//! name in them and takes the user of the startup message. So the gateway knows no password and no verifier, and `pg_hba.conf`,
//! `VALID UNTIL` and the role's attributes decide.
//!
//! RULE: a client that gives a password is a role only if PostgreSQL has checked it by SCRAM in this login. A router that lets the gateway in
//! without SCRAM (`trust`, `peer`, a certificate) has not checked the client, so such a login is refused.
//!
//! A client with a certificate has proved its name to the gateway ([`crate::tls`]), which the gateway cannot show to PostgreSQL. RULE: it is the
//! role of that name only if PostgreSQL lets the gateway in as that role without a password, which `pg_hba.conf` says by `peer` or `cert`
//! with a map. So for each role PostgreSQL accepts one of the two logins only.

use crate::backend::{Channel, POLL, Proof, ServerError, Session, unexpected};
use crate::router::{Router, Routers, Stream};
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

pub const MECHANISM: &str = "SCRAM-SHA-256";

/// Why a login failed.
#[derive(Debug)]
pub enum Refusal {
    /// PostgreSQL's error
    Server(ServerError),
    /// no router can be reached, or the connection broke
    Io(io::Error),
    /// the router did not ask for a password
    Unchecked,
    /// the router asked for a password, of a client that has a certificate
    Asked,
    /// the router is a standby
    Standby,
}

impl Refusal {
    /// True if another attempt may succeed soon, as the router restarts, or another one takes its place.
    fn is_of_restart(&self) -> bool {
        match self {
            Refusal::Server(error) => error.is_of_restart(),
            Refusal::Io(error) => !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput),
            Refusal::Standby => true,
            Refusal::Unchecked | Refusal::Asked => false,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Io(error)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Server(error) => write!(f, "{} ({})", error.message, error.sqlstate),
            Refusal::Io(error) => write!(f, "{error}"),
            Refusal::Standby => f.write_str("the router is a standby"),
            Refusal::Asked => f.write_str(
                "the router asks for a password: its pg_hba.conf must let the gateway in as a role with a certificate, by peer or cert with a map",
            ),
            Refusal::Unchecked => {
                f.write_str("the router does not ask for SCRAM-SHA-256: its pg_hba.conf must demand scram-sha-256 of the gateway's address")
            }
        }
    }
}

/// How long to wait for the answer of a router that is asked whether it is ready.
const READY: Duration = Duration::from_secs(1);

static SESSIONS: AtomicU64 = AtomicU64::new(1);

fn next_id() -> u64 {
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}

/// A login to which the router has sent its challenge.
pub struct Login {
    channel: Channel,
    router: Router,
    proof: Proof,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

/// Sends a startup message; returns what the router asks for.
async fn startup(routers: &Routers, user: &str) -> Result<(Login, Message), Refusal> {
    let (router, stream) = routers.connect().await?;
    let (mut channel, asked) = greet(&router, stream, user).await.inspect_err(|refusal| {
        if refusal.is_of_restart() {
            routers.pass_over(&router);
        }
    })?;
    channel.output.clear();
    Ok((Login { channel, router, proof: Proof::Nothing }, asked))
}

async fn greet(router: &Router, stream: Box<dyn Stream>, user: &str) -> Result<(Channel, Message), Refusal> {
    let mut channel = Channel::new(stream);
    let parameters = [
        ("user", user),
        ("database", router.database.as_str()),
        ("client_encoding", "UTF8"),
        ("application_name", "docshard-gateway"),
    ];
    frontend::startup_message(parameters, &mut channel.output)?;
    channel.send().await?;
    let asked = receive(&mut channel).await?;
    Ok((channel, asked))
}

async fn receive(channel: &mut Channel) -> Result<Message, Refusal> {
    match channel.receive().await? {
        Message::ErrorResponse(body) => Err(Refusal::Server(ServerError::of(&body)?)),
        message => Ok(message),
    }
}

/// True if a refused attempt should be repeated, because the routers restart or fail over. In that case, returns after a pause.
async fn again(refusal: &Refusal, until: Instant) -> bool {
    let again = refusal.is_of_restart() && Instant::now() < until;
    if again {
        tokio::time::sleep(POLL).await;
    }
    again
}

impl Login {
    /// Sends the client's first message, and returns the router's. Waits for a router that restarts.
    pub async fn start(
        routers: &Routers,
        hold: Duration,
        user: &str,
        first: &[u8],
    ) -> Result<(Self, Vec<u8>), Refusal> {
        let until = Instant::now() + hold;
        loop {
            match Self::challenge(routers, user, first).await {
                Err(refusal) if again(&refusal, until).await => {}
                result => return result,
            }
        }
    }

    async fn challenge(routers: &Routers, user: &str, first: &[u8]) -> Result<(Self, Vec<u8>), Refusal> {
        let (mut login, asked) = startup(routers, user).await?;
        match asked {
            Message::AuthenticationSasl(body) if body.mechanisms().any(|name| Ok(name == MECHANISM))? => {}
            _ => return Err(Refusal::Unchecked),
        }
        frontend::sasl_initial_response(MECHANISM, first, &mut login.channel.output)?;
        login.channel.send().await?;
        match receive(&mut login.channel).await? {
            Message::AuthenticationSaslContinue(body) => {
                let challenge = body.data().to_vec();
                // `r=NONCE,s=SALT,i=ITERATIONS`
                let salt = challenge.splitn(2, |byte| *byte == b',').nth(1).unwrap_or_default().to_vec();
                login.proof = Proof::Password(salt);
                Ok((login, challenge))
            }
            _ => Err(unexpected().into()),
        }
    }

    /// Sends the client's final message; returns the router's, and the session. Waits for a standby to be promoted, at most for
    /// `hold`.
    pub async fn finish(
        mut self,
        routers: &Routers,
        hold: Duration,
        last: &[u8],
    ) -> Result<(Session, Vec<u8>), Refusal> {
        frontend::sasl_response(last, &mut self.channel.output)?;
        self.channel.send().await?;
        let signature = match receive(&mut self.channel).await? {
            Message::AuthenticationSaslFinal(body) => body.data().to_vec(),
            _ => return Err(unexpected().into()),
        };
        Ok((self.accepted(routers, hold).await?, signature))
    }

    async fn accepted(mut self, routers: &Routers, hold: Duration) -> Result<Session, Refusal> {
        match receive(&mut self.channel).await? {
            Message::AuthenticationOk => self.begin(routers, hold).await,
            _ => Err(unexpected().into()),
        }
    }

    async fn begin(self, routers: &Routers, hold: Duration) -> Result<Session, Refusal> {
        let Self { channel, router, proof } = self;
        let mut session = Session::begin(next_id(), channel, router.clone()).await?.map_err(Refusal::Server)?;
        let until = Instant::now() + hold;
        while session.is_standby().await? {
            if Instant::now() >= until || is_another_ready(routers, &router).await {
                routers.pass_over(&router);
                return Err(Refusal::Standby);
            }
            tokio::time::sleep(POLL).await;
        }
        session.proof = proof;
        Ok(session)
    }
}

async fn is_another_ready(routers: &Routers, router: &Router) -> bool {
    for other in routers.others(router) {
        if is_ready(other).await {
            return true;
        }
    }
    false
}

/// True if a router accepts logins, whether it is a primary or a standby.
async fn is_ready(router: &Router) -> bool {
    let ask = async {
        match router.connect().await {
            Ok(stream) => greet(router, stream, "docshard_gateway").await.is_ok(),
            Err(_) => false,
        }
    };
    tokio::time::timeout(READY, ask).await.unwrap_or(false)
}

/// Opens a session for a client that has the certificate of a role, if PostgreSQL lets the gateway in as the role. Waits for a router that
/// restarts.
pub async fn certified(routers: &Routers, hold: Duration, role: &str, proof: &Proof) -> Result<Session, Refusal> {
    let until = Instant::now() + hold;
    loop {
        match enter_certified(routers, role, proof.clone()).await {
            Err(refusal) if again(&refusal, until).await => {}
            result => return result,
        }
    }
}

async fn enter_certified(routers: &Routers, role: &str, proof: Proof) -> Result<Session, Refusal> {
    let (login, asked) = startup(routers, role).await?;
    match asked {
        Message::AuthenticationOk => Login { proof, ..login }.begin(routers, Duration::ZERO).await,
        _ => Err(Refusal::Asked),
    }
}

/// Logs the gateway itself in, as the role for clients without a user, with the configured password if the router asks for one.
pub async fn anonymous(routers: &Routers, hold: Duration, role: &str) -> Result<Session, Refusal> {
    let until = Instant::now() + hold;
    loop {
        match enter(routers, role).await {
            Err(refusal) if again(&refusal, until).await => {}
            result => return result,
        }
    }
}

async fn enter(routers: &Routers, role: &str) -> Result<Session, Refusal> {
    let (mut login, asked) = startup(routers, role).await?;
    match (asked, &routers.password) {
        (Message::AuthenticationOk, _) => login.begin(routers, Duration::ZERO).await,
        (Message::AuthenticationSasl(_), Some(password)) => {
            let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
            frontend::sasl_initial_response(MECHANISM, scram.message(), &mut login.channel.output)?;
            login.channel.send().await?;
            let Message::AuthenticationSaslContinue(body) = receive(&mut login.channel).await? else {
                return Err(unexpected().into());
            };
            scram.update(body.data())?;
            frontend::sasl_response(scram.message(), &mut login.channel.output)?;
            login.channel.send().await?;
            let Message::AuthenticationSaslFinal(body) = receive(&mut login.channel).await? else {
                return Err(unexpected().into());
            };
            scram.finish(body.data())?;
            login.accepted(routers, Duration::ZERO).await
        }
        _ => Err(Refusal::Server(ServerError {
            sqlstate: "28000".to_owned(),
            message: format!("the router asks for a password of the role \"{role}\", and --router has none"),
            ..ServerError::default()
        })),
    }
}
