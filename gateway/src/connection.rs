//! One client's connection: reads messages, answers each in turn.
//!
//! INVARIANT: only commands of a handshake run before a login. What a client that has not logged in costs is bounded: its messages, its
//! conversation's time, and its connection counts among those of unknown clients (`server`).

use crate::command::Command;
use crate::executor::Error;
use crate::gateway::Gateway;
use crate::memory::{Budget, Owner};
use crate::reply::{self, COMMAND_NOT_FOUND, Failure, Reply, UNAUTHORIZED};
use crate::sasl::{self, Conversation, User};
use crate::wire::Violation;
use crate::wire::compression::{self, Compressor};
use crate::wire::frame::{self, Frame, MAX_MESSAGE, MAX_UNKNOWN_MESSAGE, OP_COMPRESSED, OP_MSG, OP_QUERY, OP_REPLY};
use crate::wire::message::{MSG_PREFIX, REPLY_PREFIX, read_msg, read_query};
use crate::{hello, local, password};
use bson::doc;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

/// The time for the rest of a message after its first byte, and for a reply to be taken.
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
    user: Option<User>,
    conversation: Option<Conversation>,
    compressors: Vec<Compressor>,
    /// held until the client logs in
    unknown: Option<OwnedSemaphorePermit>,
    /// it has sent a message
    greeted: bool,
}

/// A request that has been read, and how its reply is sent.
struct Received {
    frame: Frame,
    compressor: Option<Compressor>,
    compressed: bool,
    budget: Budget,
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
        unknown: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let (user, conversation, compressors) = (None, None, Vec::new());
        Self {
            gateway,
            stream: BufStream::new(stream),
            id,
            client,
            user,
            conversation,
            compressors,
            unknown,
            greeted: false,
        }
    }

    /// Serves the client until it leaves, or breaks a rule.
    pub async fn serve(mut self) -> io::Result<()> {
        while let Some(mut received) = self.receive().await? {
            let body = &received.frame.body;
            let request = match received.frame.opcode {
                OP_MSG => read_msg((!received.compressed).then_some(&received.frame.header), body),
                OP_QUERY => read_query(body),
                _ => Err(Violation("this operation is not of the protocol any more")),
            };
            let request = request.map_err(|violation| invalid(&violation))?;
            let (command, more_to_come) = (Command::of(&request), request.more_to_come);
            // The command has a copy.
            received.frame.body = Vec::new();
            let (name, outcome) = self.answer(command, &mut received.budget).await;
            let reply = match outcome {
                Outcome::Reply(reply) => reply,
                Outcome::Close => return Ok(()),
            };
            if !more_to_come {
                let compressor = received.compressor.filter(|_| may_be_compressed(&name));
                timeout(TRANSFER, self.send(&received.frame, &reply, compressor)).await??;
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
            .map_or_else(|| Owner::Address(self.client.ip()), |user| Owner::Role(user.identity.role.clone()))
    }

    /// The time until a message's first byte.
    fn patience(&self) -> Duration {
        let idle = self.gateway.idle;
        match (self.greeted, self.is_known()) {
            (false, _) => idle.min(FIRST),
            (true, false) => idle.min(UNKNOWN_IDLE),
            (true, true) => idle,
        }
    }

    /// None if the client has left, or was idle for too long.
    async fn receive(&mut self) -> io::Result<Option<Received>> {
        let login = self.conversation.as_ref().map(|conversation| conversation.until);
        let until = login.unwrap_or_else(|| Instant::now() + self.patience());
        match timeout_at(until, frame::await_message(&mut self.stream)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => return Ok(None),
            Ok(Err(error)) => return Err(error),
        }
        let (limit, transfer) = if self.is_known() { (MAX_MESSAGE, TRANSFER) } else { (MAX_UNKNOWN_MESSAGE, FIRST) };
        let until = login.unwrap_or_else(|| Instant::now() + transfer);
        let mut budget = Budget::new(self.gateway.memory.clone(), self.owner());
        let announced = timeout_at(until, frame::announced(&mut self.stream, limit)).await??;
        budget.request(announced.length, announced.content, until).await?;
        let mut frame = timeout_at(until, frame::read(&mut self.stream, announced)).await??;
        self.greeted = true;
        let (mut compressor, compressed) = (None, frame.opcode == OP_COMPRESSED);
        if compressed {
            let opened = compression::open(&frame.body, &self.compressors, limit);
            (frame.opcode, frame.body, compressor) = opened.map_err(|violation| invalid(&violation))?;
        }
        Ok(Some(Received { frame, compressor, compressed, budget }))
    }

    async fn send(&mut self, request: &Frame, reply: &[u8], compressor: Option<Compressor>) -> io::Result<()> {
        let (opcode, prefix) = if request.opcode == OP_QUERY { (OP_REPLY, REPLY_PREFIX) } else { (OP_MSG, MSG_PREFIX) };
        match compressor {
            Some(compressor) => {
                let body = compression::close(opcode, &[prefix, reply], compressor)?;
                frame::write(&mut self.stream, request.request, OP_COMPRESSED, &[&body]).await?;
            }
            None => frame::write(&mut self.stream, request.request, opcode, &[prefix, reply]).await?,
        }
        Ok(())
    }

    /// Returns the command's name, too.
    async fn answer(&mut self, command: Result<Command, Failure>, budget: &mut Budget) -> (String, Outcome) {
        let command = match command {
            Ok(command) => command,
            Err(failure) => return (String::new(), Outcome::Reply(failure.reply())),
        };
        let outcome = self.run(&command, budget).await;
        (command.name, outcome)
    }

    async fn run(&mut self, command: &Command, budget: &mut Budget) -> Outcome {
        let document = command.document();
        let name = command.name.as_str();
        if hello::is_hello(name) {
            return Outcome::Reply(self.hello(command).await);
        }
        let handshake = match name {
            "saslStart" => Some(self.start(command).await),
            "saslContinue" => Some(self.proceed(command).await),
            "logout" => {
                self.user = None;
                Some(Ok(reply::ok(doc! {})))
            }
            "authenticate" => {
                let message = "x.509 authentication is not enabled; use SCRAM-SHA-256";
                Some(Err(Failure::new(reply::MECHANISM_UNAVAILABLE, message)))
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
        if let Some(answered) = local::answer(name, document, self.client, self.user.as_ref(), who.is_none()) {
            return Outcome::Reply(answered.unwrap_or_else(|failure| failure.reply()));
        }
        let Some(who) = who else {
            return Outcome::Reply(Failure::new(COMMAND_NOT_FOUND, format!("no such command: '{name}'")).reply());
        };
        let hidden = match password::hide(command) {
            Ok(hidden) => hidden,
            Err(failure) => return Outcome::Reply(failure.reply()),
        };
        let command = hidden.as_ref().unwrap_or(command);
        let (gateway, stream, id) = (&self.gateway, &mut self.stream, self.id);
        tokio::select! {
            result = gateway.executor.run(&who, id, command, budget) => match result {
                Ok(reply) => Outcome::Reply(reply),
                Err(Error::Failure(failure)) => Outcome::Reply(failure.reply()),
                Err(Error::LoginNeeded) => Outcome::Close,
            },
            // Nobody waits for the answer any more. Dropping the execution cancels the statement.
            () = left(stream) => Outcome::Close,
        }
    }

    async fn hello(&mut self, command: &Command) -> Reply {
        let document = command.document();
        let offered = hello::offered(document);
        if !offered.is_empty() {
            self.compressors = offered;
        }
        let mut fields = hello::reply(&command.name, document, self.id, &self.compressors);
        // A login that fails here is tried again by the driver, in messages of its own.
        if let Ok(first) = document.get_document("speculativeAuthenticate") {
            let database = first.get_str("db").unwrap_or("admin");
            let context = self.gateway.sasl(self.client.ip());
            if let Ok(turn) = sasl::start(context, first, database).await {
                fields.insert("speculativeAuthenticate", turn.reply.clone());
                self.take(turn);
            }
        }
        reply::ok(fields)
    }

    async fn start(&mut self, command: &Command) -> Result<Reply, Failure> {
        self.conversation = None;
        let turn = sasl::start(self.gateway.sasl(self.client.ip()), command.document(), &command.database).await?;
        Ok(self.take(turn))
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
    // Bytes are the next request, which waits.
    if matches!(stream.fill_buf().await, Ok(bytes) if !bytes.is_empty()) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Wanted, parse};
    use crate::wire::compression::Compressor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    /// A client, and when its connection has ended.
    fn client() -> (DuplexStream, JoinHandle<Duration>) {
        let Ok(Wanted::Serve(options)) = parse(["--router", "postgresql://127.0.0.1:1/x"].map(Into::into)) else {
            panic!("the options are wrong");
        };
        let (here, there) = tokio::io::duplex(1 << 20);
        let connection = Connection::new(Gateway::new(&options).unwrap(), there, 1, ([127, 0, 0, 1], 1).into(), None);
        let began = Instant::now();
        let served = tokio::spawn(async move {
            let _ = connection.serve().await;
            began.elapsed()
        });
        (here, served)
    }

    async fn hello(stream: &mut DuplexStream) {
        let command = doc! { "hello": 1, "$db": "admin" }.to_vec().unwrap();
        frame::write(stream, 0, OP_MSG, &[MSG_PREFIX, &command]).await.unwrap();
        let announced = frame::announced(stream, MAX_MESSAGE).await.unwrap();
        frame::read(stream, announced).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (silent, served) = client();
        assert_eq!(served.await.unwrap().as_secs(), FIRST.as_secs());
        drop(silent);
        // Also within a message.
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
        let body = compression::close(OP_MSG, &[&[0; 70_000]], Compressor::Zlib).unwrap();
        frame::write(&mut stream, 0, OP_COMPRESSED, &[&body]).await.unwrap();
        assert_eq!(served.await.unwrap(), Duration::ZERO);
    }
}
