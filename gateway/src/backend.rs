//! One session at a router: PostgreSQL's protocol, as far as the gateway needs it.
//!
//! A session exists only after a login that PostgreSQL itself has checked. It runs one statement,
//! `docshard.run_command_bson(database, command)`, in the extended protocol, each in a transaction of its own.
//!
//! INVARIANT: a session whose statement was not read to its end is never used again.

use crate::reply::Failure;
use crate::router::{Router, Stream};
use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, ErrorResponseBody, Header, Message};
use postgres_protocol::message::frontend;
use postgres_protocol::{IsNull, Oid};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

const TEXT: Oid = 25;
const BYTEA: Oid = 17;

/// The longest message of a router: an answer and what PostgreSQL adds.
const MAX_MESSAGE: i32 = 64 * 1024 * 1024;

/// Buffers that have grown beyond this are freed after use.
const KEPT: usize = 256 * 1024;

/// The time for the end of a statement that was cancelled.
const CANCELLATION: Duration = Duration::from_secs(10);

/// An error of PostgreSQL's.
#[derive(Clone, Debug, Default)]
pub struct ServerError {
    pub sqlstate: String,
    pub message: String,
    pub detail: String,
    /// the session ends with it
    pub fatal: bool,
}

impl ServerError {
    pub fn of(body: &ErrorResponseBody) -> io::Result<Self> {
        let mut error = Self::default();
        let mut fields = body.fields();
        while let Some(field) = fields.next()? {
            let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => error.sqlstate = value(),
                b'M' => error.message = value(),
                b'D' => error.detail = value(),
                b'V' => error.fatal = matches!(field.value_bytes(), b"FATAL" | b"PANIC"),
                _ => {}
            }
        }
        Ok(error)
    }

    /// MongoDB's code is in the detail of docshard's errors.
    pub fn failure(&self) -> Failure {
        let named = || {
            let (code, rest) = self.detail.strip_prefix("MongoDB error ")?.split_once(" (")?;
            Some((code.parse::<i32>().ok()?, rest.split_once(')')?.0))
        };
        let of_class = || match self.sqlstate.get(..2) {
            Some("08") => (6, "HostUnreachable"),
            Some("28") => (18, "AuthenticationFailed"),
            Some("40") => (112, "WriteConflict"),
            Some("53") => (146, "ExceededMemoryLimit"),
            Some("57") if self.sqlstate == "57014" => (11601, "Interrupted"),
            Some("57") => (91, "ShutdownInProgress"),
            _ if self.sqlstate == "42501" => (13, "Unauthorized"),
            _ => (8, "UnknownError"),
        };
        Failure::new(named().unwrap_or_else(of_class), self.message.clone())
    }
}

/// How a session ended that the gateway would have kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// the router ended it, perhaps because an administrator did
    Router,
    /// a time limit for idle sessions or for transactions
    Timeout,
}

impl End {
    fn of(error: &ServerError) -> Self {
        match error.sqlstate.as_str() {
            "57P05" | "25P03" | "25P04" => End::Timeout,
            _ => End::Router,
        }
    }

    /// None if the gateway gives the session up, for what it does not understand.
    fn of_broken(error: &io::Error) -> Option<Self> {
        (!matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)).then_some(End::Router)
    }
}

/// The bytes between gateway and router.
pub struct Channel {
    stream: Box<dyn Stream>,
    input: BytesMut,
    pub output: BytesMut,
}

impl Channel {
    pub fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, input: BytesMut::new(), output: BytesMut::new() }
    }

    pub async fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        self.stream.flush().await?;
        self.output.clear();
        if self.output.capacity() > KEPT {
            self.output = BytesMut::new();
        }
        Ok(())
    }

    /// The next message that has been read whole, without those that may come at any time.
    fn parse(&mut self) -> io::Result<Option<Message>> {
        loop {
            let length = Header::parse(&self.input)?.map_or(0, |header| header.len());
            if length > MAX_MESSAGE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of the router is too long"));
            }
            match Message::parse(&mut self.input)? {
                Some(Message::NoticeResponse(_) | Message::ParameterStatus(_) | Message::NotificationResponse(_)) => {}
                message => return Ok(message),
            }
        }
    }

    pub async fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.parse()? {
                return Ok(message);
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads to the end of a statement, or of the session.
    async fn last(&mut self) -> Option<End> {
        loop {
            match self.receive().await {
                Ok(Message::ReadyForQuery(_)) => return None,
                Ok(Message::ErrorResponse(body)) => {
                    let error = ServerError::of(&body).ok()?;
                    if error.fatal {
                        return Some(End::of(&error));
                    }
                }
                Ok(_) => {}
                Err(error) => return End::of_broken(&error),
            }
        }
    }

    /// Whether the router has ended the session while nothing was expected. Does not wait.
    fn look(&mut self) -> Option<End> {
        let mut nobody = Context::from_waker(Waker::noop());
        // More than this was not asked for.
        for _ in 0..128 {
            let mut bytes = [0; 512];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = std::future::poll_fn(|context| Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            // Else a task that has done much already is told that nothing has come.
            let ready = pin!(tokio::task::unconstrained(read)).poll(&mut nobody);
            let open = match ready {
                Poll::Pending => return None,
                Poll::Ready(result) => result.is_ok() && !buffer.filled().is_empty(),
            };
            self.input.extend_from_slice(buffer.filled());
            match self.parse() {
                Ok(None) if open => {}
                Ok(Some(Message::ErrorResponse(body))) => {
                    return Some(ServerError::of(&body).map_or(End::Router, |error| End::of(&error)));
                }
                _ => return Some(End::Router),
            }
        }
        Some(End::Router)
    }
}

pub struct Session {
    pub id: u64,
    /// when it became idle
    pub since: Instant,
    channel: Channel,
    router: Router,
    /// what a cancel request names
    key: (i32, i32),
    /// a statement was sent whose end has not been read
    running: bool,
    end: Option<End>,
    /// the role's OID, which no other role of this name has
    pub role: Oid,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("running", &self.running).finish_non_exhaustive()
    }
}

const STATEMENT: &str = "run";

/// The version of the extension, and the role.
const FACTS: &str = "SELECT e.extversion, r.oid FROM pg_catalog.pg_extension AS e, pg_catalog.pg_roles AS r \
    WHERE e.extname OPERATOR(pg_catalog.=) 'docshard' AND r.rolname OPERATOR(pg_catalog.=) SESSION_USER";

/// Tells the operator once that the router's extension has another version.
fn note_version(version: &str) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let own = env!("CARGO_PKG_VERSION");
    if version != own && !TOLD.swap(true, Ordering::Relaxed) {
        eprintln!(
            "docshard-gateway: this is version {own}, and the router's extension {version:?}; they should be the same"
        );
    }
}

impl Session {
    /// Takes a connection on which PostgreSQL has accepted a login, and prepares its statement.
    pub async fn begin(id: u64, mut channel: Channel, router: Router) -> io::Result<Result<Self, ServerError>> {
        let mut key = (0, 0);
        loop {
            match channel.receive().await? {
                Message::BackendKeyData(data) => key = (data.process_id(), data.secret_key()),
                Message::ReadyForQuery(_) => break,
                Message::ErrorResponse(body) => return Ok(Err(ServerError::of(&body)?)),
                _ => return Err(unexpected()),
            }
        }
        let sql = "SELECT docshard.run_command_bson($1, $2)";
        frontend::parse(STATEMENT, sql, [TEXT, BYTEA], &mut channel.output)?;
        frontend::sync(&mut channel.output);
        frontend::query(FACTS, &mut channel.output)?;
        channel.send().await?;
        let (mut failed, mut ready, mut role) = (None, 0, 0);
        loop {
            match channel.receive().await? {
                Message::ParseComplete => {}
                Message::ErrorResponse(body) => failed = Some(ServerError::of(&body)?),
                Message::RowDescription(_) | Message::CommandComplete(_) => {}
                Message::DataRow(row) => {
                    note_version(&String::from_utf8_lossy(&column(&row, 0)?));
                    let oid = String::from_utf8(column(&row, 1)?).ok().and_then(|oid| oid.parse().ok());
                    role = oid.ok_or_else(unexpected)?;
                }
                Message::ReadyForQuery(_) if ready == 0 => ready = 1,
                Message::ReadyForQuery(_) => break,
                _ => return Err(unexpected()),
            }
        }
        Ok(match failed {
            Some(error) => Err(error),
            None => Ok(Self { id, since: Instant::now(), channel, router, key, running: false, end: None, role }),
        })
    }

    /// A session without a router, and the other end of its connection.
    #[cfg(test)]
    pub fn detached(id: u64) -> (Self, tokio::io::DuplexStream) {
        let (stream, other) = tokio::io::duplex(1024);
        let router = crate::router::Routers::parse(&["postgresql://127.0.0.1:1/x".to_owned()], None).unwrap().first();
        let channel = Channel::new(Box::new(stream));
        (Self { id, since: Instant::now(), channel, router, key: (0, 0), running: false, end: None, role: 10 }, other)
    }

    /// As if a statement were running.
    #[cfg(test)]
    pub fn pretend_to_run(&mut self) {
        self.running = true;
    }

    /// False while a statement's end has not been read.
    pub fn is_usable(&self) -> bool {
        !self.running
    }

    /// How it ended, if it did. Does not wait.
    pub fn end(&mut self) -> Option<End> {
        if self.end.is_none() && !self.running {
            self.end = self.channel.look();
        }
        self.end
    }

    /// Runs a command and returns the reply's BSON.
    pub async fn run(&mut self, database: &str, command: &[u8]) -> io::Result<Result<Vec<u8>, ServerError>> {
        self.running = true;
        let result = self.exchange(database, command).await;
        match &result {
            Ok(Err(error)) if error.fatal => self.end = Some(End::of(error)),
            Ok(_) => self.running = false,
            Err(error) => self.end = End::of_broken(error),
        }
        result
    }

    async fn exchange(&mut self, database: &str, command: &[u8]) -> io::Result<Result<Vec<u8>, ServerError>> {
        let output = &mut self.channel.output;
        let value = |value: &[u8], out: &mut BytesMut| {
            out.extend_from_slice(value);
            Ok(IsNull::No)
        };
        let (binary, values) = ([1i16], [database.as_bytes(), command]);
        frontend::bind("", STATEMENT, binary, values, value, binary, output).map_err(|error| match error {
            frontend::BindError::Conversion(error) => io::Error::other(error),
            frontend::BindError::Serialization(error) => error,
        })?;
        frontend::execute("", 0, output)?;
        frontend::sync(output);
        self.channel.send().await?;
        let mut result = Ok(Vec::new());
        loop {
            match self.channel.receive().await? {
                Message::BindComplete | Message::CommandComplete(_) => {}
                Message::DataRow(row) => result = Ok(column(&row, 0)?),
                Message::ErrorResponse(body) => {
                    let error = ServerError::of(&body)?;
                    if error.fatal {
                        return Ok(Err(error));
                    }
                    result = Err(error);
                }
                Message::ReadyForQuery(body) if body.status() == b'I' => break,
                _ => return Err(unexpected()),
            }
        }
        if self.channel.input.capacity() > KEPT && self.channel.input.is_empty() {
            self.channel.input = BytesMut::new();
        }
        Ok(result)
    }

    /// Asks the router to cancel a statement that is running, if one is, and closes the session. Returns how it ended if the
    /// router ended it before.
    pub async fn abandon(mut self) -> Option<End> {
        if !self.running {
            return self.end;
        }
        if let Ok(stream) = self.router.connect().await {
            let mut channel = Channel::new(stream);
            frontend::cancel_request(self.key.0, self.key.1, &mut channel.output);
            let _ = channel.send().await;
            // The router closes the connection when the signal has been sent.
            let _ = channel.stream.read_u8().await;
        }
        // A statement that was not sent whole does not end.
        if self.end.is_some() || !self.channel.output.is_empty() {
            return self.end;
        }
        tokio::time::timeout(CANCELLATION, self.channel.last()).await.ok().flatten()
    }
}

fn column(row: &DataRowBody, number: usize) -> io::Result<Vec<u8>> {
    let range = row.ranges().nth(number)?.flatten().ok_or_else(unexpected)?;
    Ok(row.buffer().get(range).ok_or_else(unexpected)?.chunk().to_vec())
}

pub fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an unexpected message of the router")
}

#[cfg(test)]
mod tests {
    use super::ServerError;

    #[test]
    fn mongodbs_code_is_in_the_detail() {
        let error = |sqlstate: &str, detail: &str| {
            let error =
                ServerError { sqlstate: sqlstate.into(), message: "m".into(), detail: detail.into(), fatal: false };
            let failure = error.failure();
            (failure.code, failure.name)
        };
        assert_eq!(error("57014", "MongoDB error 50 (MaxTimeMSExpired)."), (50, "MaxTimeMSExpired".to_owned()));
        assert_eq!(error("57014", ""), (11601, "Interrupted".to_owned()));
        assert_eq!(error("42501", "no code"), (13, "Unauthorized".to_owned()));
        assert_eq!(error("", "MongoDB error x ("), (8, "UnknownError".to_owned()));
    }
}
