//! One client's connection: reads messages, answers each in turn.
//!
//! INVARIANT: before a login only commands of a handshake run. A client that has not logged in has limits: on the size of its messages and
//! the time of its conversation; and its connection counts among those of unknown clients (`server`).

use crate::command::Command;
use crate::executor::{Error, cursor_of};
use crate::gateway::Gateway;
use crate::memory::{Budget, Owner};
use crate::pool::Identity;
use crate::reply::{self, BAD_VALUE, COMMAND_NOT_FOUND, Failure, Reply, UNAUTHORIZED};
use crate::sasl::{self, Conversation, User};
use crate::shares::{Share, network};
use crate::wire::Violation;
use crate::wire::compression::{self, Compressor};
use crate::wire::frame::{self, Frame, MAX_MESSAGE, MAX_UNKNOWN_MESSAGE, OP_COMPRESSED, OP_MSG, OP_QUERY, OP_REPLY};
use crate::wire::message::{MORE_PREFIX, MSG_PREFIX, REPLY_PREFIX, read_msg, read_query};
use crate::{hello, local, password, session_commands, work};
use bson::{RawDocument, doc};
use rustls_pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufStream};
use tokio::time::{Instant, timeout, timeout_at};

/// The time for the rest of a message after its first byte, and for the client to read a reply.
const TRANSFER: Duration = Duration::from_secs(120);

/// The time for a client's first message, and for the rest of any message until it logs in.
const FIRST: Duration = Duration::from_secs(10);

/// The time between two messages of a client that has not logged in. Drivers' monitoring connections send one every ten seconds.
const UNKNOWN_IDLE: Duration = Duration::from_secs(60);

pub struct Connection<S> {
    gateway: Arc<Gateway>,
    stream: BufStream<S>,
    id: i32,
    client: SocketAddr,
    /// the certificate that the client has shown, which TLS has verified
    certificate: Option<CertificateDer<'static>>,
    user: Option<User>,
    conversation: Option<Conversation>,
    compressors: Vec<Compressor>,
    /// held until the client logs in
    unknown: Option<Share>,
    /// the client has sent a message
    greeted: bool,
    /// the number of the last reply
    sent: i32,
    /// the name of the client's program
    #[cfg(feature = "fault_points")]
    program: Option<String>,
}

/// A request that has been read, and how its reply is sent.
struct Received {
    request: i32,
    opcode: i32,
    compressor: Option<Compressor>,
    command: Result<Command, Failure>,
    more_to_come: bool,
    /// the command is run again after its reply while its cursor is open, and the client gets each reply without asking
    exhaust: bool,
}

impl Received {
    /// Inflates a message, and reads the command in it.
    fn of(mut frame: Frame, negotiated: &[Compressor], limit: usize) -> Result<Self, Violation> {
        let (mut compressor, compressed) = (None, frame.opcode == OP_COMPRESSED);
        if compressed {
            (frame.opcode, frame.body, compressor) = compression::decompress(&frame.body, negotiated, limit)?;
        }
        let request = match frame.opcode {
            OP_MSG => read_msg((!compressed).then_some(&frame.header), &frame.body),
            OP_QUERY => read_query(&frame.body),
            _ => Err(Violation("this operation is not of the protocol any more")),
        }?;
        let (command, more_to_come) = (Command::of(&request), request.more_to_come);
        let is_more = matches!(&command, Ok(command) if command.name == "getMore");
        let exhaust = request.exhaust_allowed && !more_to_come && is_more;
        Ok(Self { request: frame.request, opcode: frame.opcode, compressor, command, more_to_come, exhaust })
    }
}

/// What follows a request.
enum Outcome {
    Reply(Reply),
    Close,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub fn new(
        gateway: Arc<Gateway>,
        stream: S,
        id: i32,
        client: SocketAddr,
        certificate: Option<CertificateDer<'static>>,
        unknown: Option<Share>,
    ) -> Self {
        let (user, conversation, compressors) = (None, None, Vec::new());
        Self {
            gateway,
            stream: BufStream::new(stream),
            id,
            client,
            certificate,
            user,
            conversation,
            compressors,
            unknown,
            greeted: false,
            sent: 0,
            #[cfg(feature = "fault_points")]
            program: None,
        }
    }

    /// Serves the client until it closes the connection, is idle for too long, or violates the protocol.
    pub async fn serve(mut self) -> io::Result<()> {
        while let Some((mut received, mut budget)) = self.receive().await? {
            loop {
                let Outcome::Reply(reply) = self.answer(&received.command, &mut budget).await else { return Ok(()) };
                let more = received.exhaust && cursor_of(&reply).is_some_and(|id| id != 0);
                if !received.more_to_come {
                    let reply = if received.opcode == OP_MSG { self.gateway.clock.stamp(reply) } else { reply };
                    received.request = timeout(TRANSFER, self.send(&received, more, reply)).await??;
                }
                // Lets other tasks run, even if many messages of this client have arrived together.
                tokio::task::consume_budget().await;
                if !more {
                    break;
                }
            }
        }
        Ok(())
    }

    fn is_known(&self) -> bool {
        self.user.is_some() || self.gateway.anonymous.is_some()
    }

    fn owner(&self) -> Owner {
        self.user
            .as_ref()
            .map_or_else(|| Owner::Address(network(self.client.ip())), |user| Owner::Role(user.identity.role.clone()))
    }

    /// How long to wait for the first byte of the next message.
    fn patience(&self) -> Duration {
        let idle = self.gateway.idle;
        match (self.greeted, self.is_known()) {
            (false, _) => idle.min(FIRST),
            (true, false) => idle.min(UNKNOWN_IDLE),
            (true, true) => idle,
        }
    }

    /// Receives a request. None if the client has closed the connection, or was idle for too long.
    async fn receive(&mut self) -> io::Result<Option<(Received, Budget)>> {
        let login = self.conversation.as_ref().map(|conversation| conversation.until);
        let until = login.unwrap_or_else(|| Instant::now() + self.patience());
        match timeout_at(until, frame::await_message(&mut self.stream)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => return Ok(None),
            Ok(Err(error)) => return Err(error),
        }
        let (limit, transfer) = if self.is_known() { (MAX_MESSAGE, TRANSFER) } else { (MAX_UNKNOWN_MESSAGE, FIRST) };
        let until = login.unwrap_or_else(|| Instant::now() + transfer);
        let owner = self.owner();
        let mut budget = Budget::new(self.gateway.memory.clone(), owner.clone());
        let announced = timeout_at(until, frame::announced(&mut self.stream, limit)).await??;
        let size = announced.length.max(announced.content);
        budget.request(announced.length, announced.content, until).await?;
        let frame = timeout_at(until, frame::read(&mut self.stream, announced)).await??;
        self.greeted = true;
        let negotiated = self.compressors.clone();
        let received = self.gateway.work.run(&owner, size, move || Received::of(frame, &negotiated, limit)).await?;
        Ok(Some((received.map_err(|violation| invalid(&violation))?, budget)))
    }

    /// Sends the reply to a request, or to the previous reply if the request has several. Returns the reply's number. `more`:
    /// another reply follows.
    async fn send(&mut self, to: &Received, more: bool, reply: Reply) -> io::Result<i32> {
        let (opcode, prefix) = match (to.opcode, more) {
            (OP_QUERY, _) => (OP_REPLY, REPLY_PREFIX),
            (_, true) => (OP_MSG, MORE_PREFIX),
            (_, false) => (OP_MSG, MSG_PREFIX),
        };
        self.sent = self.sent.wrapping_add(1);
        let numbers = (self.sent, to.request);
        let may_be_compressed = matches!(&to.command, Ok(command) if may_be_compressed(&command.name));
        match to.compressor.filter(|_| may_be_compressed) {
            Some(compressor) => {
                let size = reply.len();
                let compress = move || compression::compress(opcode, &[prefix, &reply], compressor);
                let body = self.gateway.work.run(&self.owner(), size, compress).await??;
                frame::write(&mut self.stream, numbers, OP_COMPRESSED, &[&body]).await?;
            }
            None => frame::write(&mut self.stream, numbers, opcode, &[prefix, &reply]).await?,
        }
        Ok(self.sent)
    }

    /// Runs a command.
    async fn answer(&mut self, command: &Result<Command, Failure>, budget: &mut Budget) -> Outcome {
        match command {
            Ok(command) => self.run(command, budget).await,
            Err(failure) => Outcome::Reply(failure.reply()),
        }
    }

    #[cfg(feature = "fault_points")]
    async fn run(&mut self, command: &Command, budget: &mut Budget) -> Outcome {
        use crate::fail_point::{self, Effect};
        let gateway = self.gateway.clone();
        if command.name == "configureFailPoint" {
            let reply = gateway.fail_point.configure(&command.bytes);
            return Outcome::Reply(reply.unwrap_or_else(|failure| failure.reply()));
        }
        if hello::is_hello(&command.name)
            && let Ok(client) = command.document().get_document("client")
        {
            let application = client.get_document("application").and_then(|application| application.get_str("name"));
            self.program = application.ok().map(str::to_owned);
        }
        let fault = gateway.fail_point.of(command, self.program.as_deref());
        if let Some(pause) = fault.pause {
            tokio::time::sleep(pause).await;
        }
        let fields = match fault.effect {
            Effect::Nothing if command.name == "getParameter" => doc! { "enableTestCommands": true },
            Effect::Nothing => doc! {},
            Effect::Amend(fields) => fields,
            Effect::Reply(reply) => return Outcome::Reply(reply),
            Effect::Close => return Outcome::Close,
            Effect::CloseAfterCommand => {
                self.run_command(command, budget).await;
                return Outcome::Close;
            }
        };
        match self.run_command(command, budget).await {
            Outcome::Reply(reply) if !fields.is_empty() => Outcome::Reply(fail_point::amended(&reply, fields)),
            outcome => outcome,
        }
    }

    #[cfg(not(feature = "fault_points"))]
    async fn run(&mut self, command: &Command, budget: &mut Budget) -> Outcome {
        self.run_command(command, budget).await
    }

    async fn run_command(&mut self, command: &Command, budget: &mut Budget) -> Outcome {
        let document = command.document();
        let name = command.name.as_str();
        if hello::is_hello(name) {
            return Outcome::Reply(self.hello(command).await);
        }
        let handshake = match name {
            "saslStart" | "authenticate" => Some(self.start(command).await),
            "saslContinue" => Some(self.proceed(command).await),
            "logout" => {
                self.gateway.executor.sessions.orphan(self.id);
                // From now on the client counts as unknown. If there are too many unknown clients, it is disconnected.
                if self.user.take().is_some() && self.gateway.anonymous.is_none() {
                    self.unknown = self.gateway.unknown.try_take(&network(self.client.ip()), 1);
                    if self.unknown.is_none() {
                        return Outcome::Close;
                    }
                }
                Some(Ok(reply::ok(doc! {})))
            }
            _ => None,
        };
        if let Some(answered) = handshake {
            return Outcome::Reply(answered.unwrap_or_else(|failure| failure.reply()));
        }
        let who = self.user.as_ref().map(|user| &user.identity).or(self.gateway.anonymous.as_ref()).cloned();
        if who.is_none() && !local::is_public(name) {
            let failure = Failure::new(UNAUTHORIZED, format!("Command {name} requires authentication"));
            return Outcome::Reply(failure.reply());
        }
        if let Some(answered) = local::answer(name, self.client, who.is_none()) {
            let reply = answered.unwrap_or_else(|failure| failure.reply());
            // The gateway does not check other fields of the command. The router does, as it has the same command: its error is
            // the reply.
            return match who {
                Some(who) if !local::is_plain(name, document) => match self.ask(&who, command, budget).await {
                    Outcome::Reply(checked) if !reply::has_failed(&checked) => Outcome::Reply(reply),
                    outcome => outcome,
                },
                _ => Outcome::Reply(reply),
            };
        }
        let Some(who) = who else {
            return Outcome::Reply(Failure::new(COMMAND_NOT_FOUND, format!("no such command: '{name}'")).reply());
        };
        let hidden = match self.hide_password(command).await {
            Ok(hidden) => hidden,
            Err(failure) => return Outcome::Reply(failure.reply()),
        };
        let command = hidden.as_ref().unwrap_or(command);
        match (self.ask(&who, command, budget).await, &self.user) {
            (Outcome::Reply(reply), Some(user)) if name == "connectionStatus" => {
                Outcome::Reply(reply::with_users_of(&reply, &user.database))
            }
            (outcome, _) => outcome,
        }
    }

    /// Has a router run a command.
    async fn ask(&mut self, who: &Identity, command: &Command, budget: &mut Budget) -> Outcome {
        let (gateway, stream, id) = (&self.gateway, &mut self.stream, self.id);
        tokio::select! {
            result = gateway.executor.run(who, id, command, budget) => match result {
                Ok(reply) => Outcome::Reply(reply),
                Err(Error::Failure(failure)) => Outcome::Reply(failure.reply()),
                Err(Error::LoginNeeded) => Outcome::Close,
            },
            // The client is gone. Dropping the execution cancels the statement. Sessions are ended nevertheless: drivers leave without waiting
            // for the reply.
            () = left(stream), if !session_commands::is_one(&command.name) => Outcome::Close,
        }
    }

    /// The command with a verifier in place of its password; None if it has no password.
    async fn hide_password(&mut self, command: &Command) -> Result<Option<Command>, Failure> {
        let Some(password) = password::of(command)? else { return Ok(None) };
        let owner = self.owner();
        let verifier = self.gateway.work.run(&owner, work::LONG, move || password::verifier(&password)).await;
        let verifier = verifier.map_err(|error| Failure::new(BAD_VALUE, error.to_string()))??;
        password::replaced(command, &verifier).map(Some)
    }

    async fn hello(&mut self, command: &Command) -> Reply {
        let document = command.document();
        if let Err(failure) = hello::check(document) {
            return failure.reply();
        }
        let offered = hello::offered(document);
        if !offered.is_empty() {
            self.compressors = offered;
        }
        let mut fields = hello::reply(&command.name, document, self.id, &self.compressors);
        // A login that fails here is tried again by the driver, in messages of its own.
        if let Ok(first) = document.get_document("speculativeAuthenticate") {
            let database = first.get_str("db").unwrap_or("admin");
            if let Ok(turn) = self.begin(first, database).await {
                fields.insert("speculativeAuthenticate", turn.reply.clone());
                self.take(turn);
            }
        }
        reply::ok(fields)
    }

    async fn start(&mut self, command: &Command) -> Result<Reply, Failure> {
        let turn = self.begin(command.document(), &command.database).await?;
        Ok(self.take(turn))
    }

    /// Begins a conversation. An earlier one ends first, which releases its share of the logins.
    async fn begin(&mut self, first: &RawDocument, database: &str) -> Result<sasl::Turn, Failure> {
        self.conversation = None;
        let context = self.gateway.sasl(self.client.ip());
        match sasl::is_of_certificate(first) {
            true => sasl::authenticate(context, first, self.certificate.as_ref()).await,
            false => sasl::start(context, first, database).await,
        }
    }

    async fn proceed(&mut self, command: &Command) -> Result<Reply, Failure> {
        let conversation = self.conversation.take();
        let turn = sasl::proceed(self.gateway.sasl(self.client.ip()), conversation, command.document()).await?;
        Ok(self.take(turn))
    }

    fn take(&mut self, turn: sasl::Turn) -> Reply {
        self.conversation = turn.conversation;
        if turn.user.is_some() {
            self.user = turn.user;
            self.unknown = None;
        }
        reply::ok(turn.reply)
    }
}

/// Replies of a handshake are never compressed.
fn may_be_compressed(name: &str) -> bool {
    !hello::is_hello(name) && !matches!(name, "saslStart" | "saslContinue" | "authenticate")
}

fn invalid(violation: &Violation) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, violation.0)
}

/// Returns when the client has closed its connection.
async fn left(stream: &mut (impl AsyncBufReadExt + Unpin)) {
    // If there are bytes, they are the next request, which must wait; so this never returns.
    if matches!(stream.fill_buf().await, Ok(bytes) if !bytes.is_empty()) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Wanted, parse};
    use crate::wire::compression::Compressor;
    use bson::Document;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    /// A client, and when its connection has ended.
    fn client() -> (DuplexStream, JoinHandle<Duration>) {
        client_with(&["--router", "postgresql://127.0.0.1:1/x"])
    }

    fn client_with(arguments: &[&str]) -> (DuplexStream, JoinHandle<Duration>) {
        let Ok(Wanted::Serve(options)) = parse(arguments.iter().map(Into::into)) else {
            panic!("the options are wrong");
        };
        let (here, there) = tokio::io::duplex(1 << 20);
        let address = ([127, 0, 0, 1], 1).into();
        let connection = Connection::new(Gateway::new(&options).unwrap(), there, 1, address, None, None);
        let began = Instant::now();
        let served = tokio::spawn(async move {
            let _ = connection.serve().await;
            began.elapsed()
        });
        (here, served)
    }

    async fn ask(stream: &mut DuplexStream, command: &Document) -> Document {
        frame::write(stream, (0, 0), OP_MSG, &[MSG_PREFIX, &command.to_vec().unwrap()]).await.unwrap();
        let announced = frame::announced(stream, MAX_MESSAGE).await.unwrap();
        let reply = frame::read(stream, announced).await.unwrap();
        Document::from_reader(&reply.body[MSG_PREFIX.len()..]).unwrap()
    }

    async fn hello(stream: &mut DuplexStream) {
        ask(stream, &doc! { "hello": 1, "$db": "admin" }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (silent, served) = client();
        assert_eq!(served.await.unwrap().as_secs(), FIRST.as_secs());
        drop(silent);
        // The limit also holds within a message.
        let (mut slow, served) = client();
        slow.write_u8(100).await.unwrap();
        assert_eq!(served.await.unwrap().as_secs(), FIRST.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_monitor() {
        let (mut stream, served) = client();
        for _ in 0..100 {
            hello(&mut stream).await;
            tokio::time::sleep(UNKNOWN_IDLE / 2).await;
        }
        assert!(!served.is_finished());
        assert_eq!(served.await.unwrap(), UNKNOWN_IDLE * 101 / 2);
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_client_cannot_inflate_a_large_message() {
        let (mut stream, served) = client();
        let body = compression::compress(OP_MSG, &[&[0; 70_000]], Compressor::Zlib).unwrap();
        frame::write(&mut stream, (0, 0), OP_COMPRESSED, &[&body]).await.unwrap();
        assert_eq!(served.await.unwrap(), Duration::ZERO);
    }
    /// A router that asks for a password, and sends its challenge.
    async fn challenging() -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut bytes = [0; 1024];
                    let ask = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0";
                    let challenge = b"R\0\0\0\x18\0\0\0\x0br=abcd,s=QQ==,i=1";
                    for answer in [&ask[..], challenge] {
                        assert!(stream.read(&mut bytes).await.unwrap() > 0);
                        stream.write_all(answer).await.unwrap();
                    }
                    while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
                });
            }
        });
        port
    }

    /// Otherwise the new login would wait for the share of the logins that the earlier one holds, and would block other clients.
    #[tokio::test]
    async fn a_login_that_is_begun_anew_ends_the_one_before() {
        let router = format!("postgresql://127.0.0.1:{}/x", challenging().await);
        let (mut stream, _served) = client_with(&["--router", &router, "--max-logins", "1"]);
        let first = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "n,,n=ann,r=ab", "$db": "admin" };
        let mut hello = doc! { "hello": 1, "$db": "admin" };
        hello.insert("speculativeAuthenticate", &first);
        assert!(ask(&mut stream, &first).await.get_binary_generic("payload").is_ok());
        for command in [&hello, &hello, &first] {
            let reply = ask(&mut stream, command).await;
            let turn = reply.get_document("speculativeAuthenticate").unwrap_or(&reply);
            assert!(turn.get_binary_generic("payload").is_ok(), "{reply}");
        }
    }
}
