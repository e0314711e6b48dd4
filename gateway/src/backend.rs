//! One session at a router: PostgreSQL's protocol, as far as the gateway needs it.
//!
//! A session exists only after a login that PostgreSQL itself has checked. It runs commands by the prepared statement
//! `docshard.run_command_bson(database, command)`, in the extended protocol. Each command is a transaction of its own, or belongs
//! to one that `BEGIN` has begun. A command with a secret is run by a function call instead, whose arguments PostgreSQL logs
//! nowhere.
//!
//! INVARIANT: a session is never used again if the answer to its statement was not read to the end. Its pool takes it back only
//! outside a transaction.

use crate::reply::Failure;
use crate::router::{Router, Stream};
use bytes::{Buf, BufMut, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{COPY_DATA_TAG, DataRowBody, ErrorResponseBody, Header, Message};
use postgres_protocol::message::frontend;
use postgres_protocol::{IsNull, Oid};
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

const TEXT: Oid = 25;
const BYTEA: Oid = 17;

/// The longest message of a router, in bytes: an answer and what PostgreSQL adds.
const MAX_MESSAGE: i32 = 64 * 1024 * 1024;

/// The capacity of the largest buffer that is kept after use, in bytes.
const KEPT: usize = 256 * 1024;

/// How long to wait for the end of a statement that was cancelled.
const CANCELLATION: Duration = Duration::from_secs(10);

/// An error that PostgreSQL has sent.
#[derive(Clone, Debug, Default)]
pub struct ServerError {
    pub sqlstate: String,
    pub message: String,
    pub detail: String,
    /// PostgreSQL ends the session after the error
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

    /// True if a statement's or a commit's outcome is unknown.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self.sqlstate.as_str(), "08007" | "40003") || self.fatal
    }

    /// True if the server starts or shuts down, so that another attempt may succeed.
    pub fn is_of_restart(&self) -> bool {
        matches!(self.sqlstate.as_str(), "57P01" | "57P02" | "57P03")
    }

    /// True if the transaction has failed, and may succeed if it is run again.
    pub fn is_transient(&self) -> bool {
        matches!(self.sqlstate.get(..2), Some("08" | "40")) || self.sqlstate.starts_with("57P0")
    }

    /// The error in MongoDB's form. docshard's errors have MongoDB's code in their detail; for others it follows from the SQLSTATE.
    pub fn failure(&self) -> Failure {
        let named = || {
            let (code, rest) = self.detail.strip_prefix("MongoDB error ")?.split_once(" (")?;
            Some((code.parse::<i32>().ok()?, rest.split_once(')')?.0))
        };
        let of_class = || match self.sqlstate.get(..2) {
            Some("08") => (6, "HostUnreachable"),
            Some("25") if self.fatal => (290, "TransactionExceededLifetimeLimitSeconds"),
            Some("28") => (18, "AuthenticationFailed"),
            Some("40") if self.sqlstate != "40003" => (112, "WriteConflict"),
            Some("53") => (146, "ExceededMemoryLimit"),
            Some("57") if self.sqlstate == "57014" => (11601, "Interrupted"),
            Some("57") => (91, "ShutdownInProgress"),
            _ if self.sqlstate == "42501" => (13, "Unauthorized"),
            _ => (8, "UnknownError"),
        };
        Failure::new(named().unwrap_or_else(of_class), self.message.clone())
    }
}

/// Why a session ended that the gateway did not end itself.
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

    /// None for a message that the gateway does not understand: then the gateway itself ends the session.
    fn of_broken(error: &io::Error) -> Option<Self> {
        (!matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)).then_some(End::Router)
    }
}

/// The bytes between gateway and router.
pub struct Channel {
    stream: Box<dyn Stream>,
    input: BytesMut,
    pub output: BytesMut,
    /// the router has said that it is a standby
    is_standby: bool,
}

impl Channel {
    pub fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, input: BytesMut::new(), output: BytesMut::new(), is_standby: false }
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

    /// The next message that has been read completely; None if there is none. Skips messages that PostgreSQL may send at any time.
    fn parse(&mut self) -> io::Result<Option<Message>> {
        loop {
            let length = Header::parse(&self.input)?.map_or(0, |header| header.len());
            if length > MAX_MESSAGE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of the router is too long"));
            }
            // The library does not know the answer to a function call (`V`), so it is read as CopyData, which is not used otherwise.
            if let Some(tag @ b'V') = self.input.first_mut() {
                *tag = COPY_DATA_TAG;
            }
            match Message::parse(&mut self.input)? {
                Some(Message::ParameterStatus(body)) => {
                    if body.name()? == "in_hot_standby" {
                        self.is_standby = body.value()? == "on";
                    }
                }
                Some(Message::NoticeResponse(_) | Message::NotificationResponse(_)) => {}
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

    /// Reads to the end of the statement, and returns None; or to the end of the session, and returns why it ended.
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

    /// Returns why the router has ended an idle session; None if it has not. Does not wait.
    fn look(&mut self) -> Option<End> {
        let mut nobody = Context::from_waker(Waker::noop());
        // An idle session receives few bytes. One that receives more than 64 KiB counts as ended.
        for _ in 0..128 {
            let mut bytes = [0; 512];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = std::future::poll_fn(|context| Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            // Without `unconstrained`, tokio would report "pending" to a task that has used up its budget.
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

/// What a login has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// the gateway itself has logged in
    Nothing,
    /// the password with this salt and these iterations
    Password(Vec<u8>),
    /// the key of the certificate with this digest, to the gateway
    Certificate(Vec<u8>),
}

impl Proof {
    /// True if PostgreSQL demands different things for the two logins. It demands one thing of a role, so its configuration has changed
    /// between them.
    pub fn contradicts(&self, other: &Self) -> bool {
        *self != Self::Nothing
            && *other != Self::Nothing
            && std::mem::discriminant(self) != std::mem::discriminant(other)
    }
}

pub struct Session {
    pub id: u64,
    /// when the session became idle
    pub since: Instant,
    channel: Channel,
    router: Router,
    /// the process id and the secret key, by which a cancel request names the session
    key: (i32, i32),
    /// a statement was sent whose end has not been read
    running: bool,
    /// the state of its transaction, which PostgreSQL reports after each statement
    transaction: Transaction,
    end: Option<End>,
    /// the role's OID, which distinguishes it from another role that had the same name
    pub role: Oid,
    /// what the login has proved
    pub proof: Proof,
    /// the router executes numbered writes once
    pub has_numbered_writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transaction {
    No,
    Open,
    Failed,
}

impl Transaction {
    fn of(status: u8) -> io::Result<Self> {
        match status {
            b'I' => Ok(Self::No),
            b'T' => Ok(Self::Open),
            b'E' => Ok(Self::Failed),
            _ => Err(unexpected()),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("running", &self.running).finish_non_exhaustive()
    }
}

/// The time between two attempts at a router that is not ready.
pub const POLL: Duration = Duration::from_millis(100);

const STATEMENT: &str = "run";

/// The function that runs commands.
const FUNCTION: &str = "SELECT 'docshard.run_command_bson(pg_catalog.text,pg_catalog.bytea)'\
    ::pg_catalog.regprocedure::pg_catalog.oid";

/// The version of the extension, and the OID of the role.
const FACTS: &str = "SELECT e.extversion, r.oid FROM pg_catalog.pg_extension AS e, pg_catalog.pg_roles AS r \
    WHERE e.extname OPERATOR(pg_catalog.=) 'docshard' AND r.rolname OPERATOR(pg_catalog.=) SESSION_USER";

/// The first version whose writes can be numbered.
const NUMBERED_WRITES: (u32, u32) = (0, 4);

fn has_numbered_writes(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= NUMBERED_WRITES
}

/// Warns the operator, once, if the router's extension has another version than the gateway.
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
        let (mut failed, mut ready, mut role, mut has_numbered) = (None, 0, 0, false);
        loop {
            match channel.receive().await? {
                Message::ParseComplete => {}
                Message::ErrorResponse(body) => failed = Some(ServerError::of(&body)?),
                Message::RowDescription(_) | Message::CommandComplete(_) => {}
                Message::DataRow(row) => {
                    let version = String::from_utf8_lossy(&column(&row, 0)?).into_owned();
                    note_version(&version);
                    has_numbered = has_numbered_writes(&version);
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
            None => {
                let (running, transaction, end) = (false, Transaction::No, None);
                let (since, proof) = (Instant::now(), Proof::Nothing);
                let has_numbered_writes = has_numbered;
                Ok(Self {
                    id,
                    since,
                    channel,
                    router,
                    key,
                    running,
                    transaction,
                    end,
                    role,
                    proof,
                    has_numbered_writes,
                })
            }
        })
    }

    /// A session without a router, and the other end of its connection.
    #[cfg(test)]
    pub fn detached(id: u64) -> (Self, tokio::io::DuplexStream) {
        let (stream, other) = tokio::io::duplex(1024);
        let router = crate::router::Routers::parse(&["postgresql://127.0.0.1:1/x".to_owned()], None).unwrap().first();
        let channel = Channel::new(Box::new(stream));
        let (running, transaction, end) = (false, Transaction::No, None);
        let (since, key, proof) = (Instant::now(), (0, 0), Proof::Nothing);
        let has_numbered_writes = true;
        (
            Self { id, since, channel, router, key, running, transaction, end, role: 10, proof, has_numbered_writes },
            other,
        )
    }

    /// Makes the session look as if a statement were running.
    #[cfg(test)]
    pub fn pretend_to_run(&mut self) {
        self.running = true;
    }

    /// Makes the session look as if a transaction were open.
    #[cfg(test)]
    pub fn pretend_to_be_in_a_transaction(&mut self) {
        self.transaction = Transaction::Open;
    }

    /// True if the session is idle: the last statement's end has been read, and no transaction is open.
    pub fn is_usable(&self) -> bool {
        !self.running && self.transaction == Transaction::No
    }

    /// True if the router is a standby. A router that has reported to be a standby is asked again, as it may have been promoted.
    pub async fn is_standby(&mut self) -> io::Result<bool> {
        if self.channel.is_standby {
            let mut row = Vec::new();
            let _ = self.query(&["SELECT pg_catalog.pg_is_in_recovery()"], &mut row).await?;
            self.channel.is_standby = row.first().is_none_or(|value| value != b"f");
        }
        Ok(self.channel.is_standby)
    }

    /// True while a statement's end has not been read.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Why the session has ended; None if it has not. Does not wait.
    pub fn end(&mut self) -> Option<End> {
        if self.end.is_none() && !self.running {
            self.end = self.channel.look();
        }
        self.end
    }

    /// Runs a command and returns the reply's BSON. The statement `begin` is executed first: if it fails, the command is not run.
    pub async fn run(
        &mut self,
        begin: Option<&str>,
        database: &str,
        command: &[u8],
    ) -> io::Result<Result<Vec<u8>, ServerError>> {
        Ok(self.run_and_ask(begin, database, command, None).await?.map(|(reply, _)| reply))
    }

    /// Like [`Session::run`]. Also executes a question, a statement without parameters, after the command, in the same round trip. Returns its row
    /// as texts; empty without a question.
    pub async fn run_and_ask(
        &mut self,
        begin: Option<&str>,
        database: &str,
        command: &[u8],
        question: Option<&str>,
    ) -> io::Result<Result<(Vec<u8>, Row), ServerError>> {
        self.running = true;
        let result = self.exchange(begin, database, command, question).await;
        self.ran(&result);
        result
    }

    /// Like [`Session::run`], outside a transaction, for a command that no log may show. It uses a function call, because PostgreSQL may
    /// log the bound values of statements, by settings of the role that the gateway cannot change.
    pub async fn run_unlogged(&mut self, database: &str, command: &[u8]) -> io::Result<Result<Vec<u8>, ServerError>> {
        let mut rows = Vec::new();
        if let Err(error) = self.query(&[FUNCTION], &mut rows).await? {
            return Ok(Err(error));
        }
        let text = rows.first().and_then(|oid| std::str::from_utf8(oid).ok());
        let function: Oid = text.and_then(|oid| oid.parse().ok()).ok_or_else(unexpected)?;
        self.running = true;
        let result = self.exchange_call(function, [database.as_bytes(), command]).await;
        self.ran(&result);
        result
    }

    async fn exchange_call(
        &mut self,
        function: Oid,
        arguments: [&[u8]; 2],
    ) -> io::Result<Result<Vec<u8>, ServerError>> {
        let length = |length: usize| u32::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        // The function's OID; one format code for all arguments, binary; the number of arguments. At the end, the format of the
        // result, binary.
        let mut body = BytesMut::new();
        body.put_u32(function);
        [1, 1, 2].into_iter().for_each(|number| body.put_u16(number));
        for argument in arguments {
            body.put_u32(length(argument.len())?);
            body.extend_from_slice(argument);
        }
        body.put_u16(1);
        let output = &mut self.channel.output;
        output.put_u8(b'F');
        output.put_u32(length(body.len() + 4)?);
        output.extend_from_slice(&body);
        self.channel.send().await?;
        let mut result = Err(ServerError::default());
        loop {
            match self.channel.receive().await? {
                Message::CopyData(value) => {
                    let (size, value) = value.data().split_at_checked(4).ok_or_else(unexpected)?;
                    // A NULL has the size -1, and is refused.
                    let is_whole = size == length(value.len())?.to_be_bytes();
                    result = Ok(is_whole.then(|| value.to_vec()).ok_or_else(unexpected)?);
                }
                Message::ErrorResponse(body) => {
                    let error = ServerError::of(&body)?;
                    if error.fatal {
                        return Ok(Err(error));
                    }
                    result = Err(error);
                }
                Message::ReadyForQuery(body) if body.status() == b'I' => return Ok(result),
                _ => return Err(unexpected()),
            }
        }
    }

    /// Runs statements without parameters, each as a query of its own, and returns the last one's command tag. `rows` gets the rows as they
    /// arrive, also if the session ends afterwards. All statements are sent at once, so only the last one should have an effect.
    pub async fn query(
        &mut self,
        statements: &[&str],
        rows: &mut Vec<Vec<u8>>,
    ) -> io::Result<Result<String, ServerError>> {
        self.running = true;
        let result = self.exchange_queries(statements, rows).await;
        self.ran(&result);
        result
    }

    fn ran<T>(&mut self, result: &io::Result<Result<T, ServerError>>) {
        match result {
            Ok(Err(error)) if error.fatal => self.end = Some(End::of(error)),
            Ok(_) => self.running = false,
            Err(error) => self.end = End::of_broken(error),
        }
    }

    async fn exchange_queries(
        &mut self,
        statements: &[&str],
        rows: &mut Vec<Vec<u8>>,
    ) -> io::Result<Result<String, ServerError>> {
        for sql in statements {
            frontend::query(sql, &mut self.channel.output)?;
        }
        self.channel.send().await?;
        let mut result = Ok(String::new());
        let mut ready = 0;
        while ready < statements.len() {
            match self.channel.receive().await? {
                Message::RowDescription(_) => {}
                Message::DataRow(row) => rows.extend(texts(&row)?),
                Message::CommandComplete(body) => result = Ok(body.tag()?.to_owned()),
                Message::ErrorResponse(body) => {
                    let error = ServerError::of(&body)?;
                    if error.fatal {
                        return Ok(Err(error));
                    }
                    result = Err(error);
                }
                Message::ReadyForQuery(body) => {
                    self.transaction = Transaction::of(body.status())?;
                    ready += 1;
                }
                _ => return Err(unexpected()),
            }
        }
        Ok(result)
    }

    async fn exchange(
        &mut self,
        begin: Option<&str>,
        database: &str,
        command: &[u8],
        question: Option<&str>,
    ) -> io::Result<Result<(Vec<u8>, Row), ServerError>> {
        let within = begin.is_some() || self.transaction != Transaction::No;
        let output = &mut self.channel.output;
        // No Sync separates the statements, so after an error PostgreSQL skips the rest.
        if let Some(begin) = begin {
            execute(begin, output)?;
        }
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
        if let Some(question) = question {
            execute(question, output)?;
        }
        frontend::sync(output);
        self.channel.send().await?;
        let mut result = Ok((Vec::new(), Row::new()));
        let mut rows = 0;
        loop {
            match self.channel.receive().await? {
                Message::ParseComplete | Message::BindComplete | Message::CommandComplete(_) => {}
                Message::DataRow(row) => {
                    rows += 1;
                    match &mut result {
                        Ok((reply, _)) if rows == 1 => *reply = column(&row, 0)?,
                        Ok((_, answer)) => *answer = texts(&row)?,
                        Err(_) => return Err(unexpected()),
                    }
                }
                Message::ErrorResponse(body) => {
                    let error = ServerError::of(&body)?;
                    if error.fatal {
                        return Ok(Err(error));
                    }
                    result = Err(error);
                }
                Message::ReadyForQuery(body) => {
                    self.transaction = Transaction::of(body.status())?;
                    break;
                }
                _ => return Err(unexpected()),
            }
        }
        if !within && self.transaction != Transaction::No {
            return Err(unexpected());
        }
        if self.channel.input.capacity() > KEPT && self.channel.input.is_empty() {
            self.channel.input = BytesMut::new();
        }
        Ok(result)
    }

    /// Closes the session; cancels its statement if one is running. Returns why the session ended if the router ended it before.
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
        // A statement that was not sent completely has no end to wait for.
        if self.end.is_some() || !self.channel.output.is_empty() {
            return self.end;
        }
        tokio::time::timeout(CANCELLATION, self.channel.last()).await.ok().flatten()
    }
}

/// The columns of a row in PostgreSQL's text form; NULL is empty.
pub type Row = Vec<Vec<u8>>;

fn texts(row: &DataRowBody) -> io::Result<Row> {
    let ranges = row.ranges().collect::<Vec<_>>()?;
    let text = |range: Option<Range<usize>>| {
        row.buffer().get(range.unwrap_or(0..0)).map(<[u8]>::to_vec).ok_or_else(unexpected)
    };
    ranges.into_iter().map(text).collect()
}

/// Adds the messages that execute a statement without parameters.
fn execute(sql: &str, output: &mut BytesMut) -> io::Result<()> {
    frontend::parse("", sql, [], output)?;
    let nothing = |(): (), _: &mut BytesMut| Ok(IsNull::Yes);
    frontend::bind("", "", [], [(); 0], nothing, [], output).map_err(|_| unexpected())?;
    frontend::execute("", 0, output)
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
    fn versions_have_numbered_writes() {
        let versions = ["0.3.0", "0.4.0", "0.10.1", "1.0.0", "0.4.0-dev", "x", ""];
        assert_eq!(versions.map(super::has_numbered_writes), [false, true, true, true, true, false, false]);
    }

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
