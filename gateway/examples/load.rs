//! Load for `bench/gateway`: clients that send one command after another, either to a gateway by MongoDB's protocol, or to a router by
//! `docshard.run_command_bson`, each client over a PostgreSQL session of its own.
//!
//! `load gateway HOST:PORT | load router URL`, then CLIENTS SECONDS find|insert DOCUMENTS. Finds read the documents of `bench.inbox` whose
//! `_id` is below DOCUMENTS; inserts go to `bench.sent`. Prints calls a second, and the median and the 99th percentile of their times in
//! milliseconds. A call that fails ends the program.

use bson::{RawDocumentBuf, oid::ObjectId, rawdoc};
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// OP_MSG
const MESSAGE: i32 = 2013;

enum Connection {
    Gateway(TcpStream),
    Router(tokio_postgres::Client, tokio_postgres::Statement),
}

impl Connection {
    async fn open(kind: &str, address: &str) -> Result<Self> {
        if kind == "gateway" {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            return Ok(Self::Gateway(stream));
        }
        let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let statement = client.prepare("SELECT docshard.run_command_bson('bench', $1)").await?;
        Ok(Self::Router(client, statement))
    }

    /// Sends a command, and returns its reply.
    async fn call(&mut self, command: RawDocumentBuf) -> Result<RawDocumentBuf> {
        let reply = match self {
            Self::Gateway(stream) => {
                let command = command.into_bytes();
                let length = i32::try_from(command.len() + 21)?;
                let mut message = Vec::with_capacity(command.len() + 21);
                for number in [length, 1, 0, MESSAGE, 0] {
                    message.extend_from_slice(&number.to_le_bytes());
                }
                message.push(0);
                message.extend_from_slice(&command);
                stream.write_all(&message).await?;
                let length = stream.read_i32_le().await?;
                let mut reply = vec![0; usize::try_from(length)?.checked_sub(4).ok_or("a message that is too short")?];
                stream.read_exact(&mut reply).await?;
                reply.split_off(17)
            }
            Self::Router(client, statement) => client.query_one(&*statement, &[&command.as_bytes()]).await?.get(0),
        };
        Ok(RawDocumentBuf::from_bytes(reply)?)
    }
}

/// A client's calls until the end: the time of each.
async fn client(
    mut connection: Connection,
    number: u64,
    until: Instant,
    inserts: bool,
    documents: u64,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    // Keys that repeat only after all others.
    let mut key = number.wrapping_mul(7919) % documents;
    while Instant::now() < until {
        key = (key + 104_729) % documents;
        let command = if inserts {
            let document = rawdoc! { "_id": ObjectId::new(), "recipient": "user 17", "sent": i64::try_from(key)?, "text": "x".repeat(300) };
            rawdoc! { "insert": "sent", "documents": [document], "$db": "bench" }
        } else {
            rawdoc! { "find": "inbox", "filter": { "_id": i64::try_from(key)? }, "limit": 1, "singleBatch": true, "$db": "bench" }
        };
        let began = Instant::now();
        let reply = connection.call(command).await?;
        times.push(began.elapsed());
        let is_right = match (inserts, reply.get("cursor")?) {
            (true, _) => reply.get("n")?.and_then(|n| n.as_i32()) == Some(1),
            (false, Some(cursor)) => {
                let batch = cursor.as_document().ok_or("no cursor")?.get_array("firstBatch")?;
                batch.into_iter().count() == 1
            }
            (false, None) => false,
        };
        if !is_right {
            return Err(format!("an unexpected reply: {reply:?}").into());
        }
    }
    Ok(times)
}

fn milliseconds(times: &[Duration], share: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into the times"
    )]
    let index = ((times.len() - 1) as f64 * share) as usize;
    times[index].as_secs_f64() * 1000.0
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, address, clients, seconds, what, documents] = arguments.as_slice() else {
        return Err("see the header of load.rs".into());
    };
    let (clients, documents): (u64, u64) = (clients.parse()?, documents.parse()?);
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Connection::open(kind, address).await?);
    }
    let length = Duration::from_secs(seconds.parse()?);
    let until = Instant::now() + length;
    let mut running = JoinSet::new();
    for (number, connection) in (0..).zip(connections) {
        running.spawn(client(connection, number, until, what == "insert", documents));
    }
    let mut times = Vec::new();
    while let Some(of_one) = running.join_next().await {
        times.extend(of_one??);
    }
    times.sort_unstable();
    if times.is_empty() {
        return Err("no call ended in time".into());
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = times.len() as f64 / length.as_secs_f64();
    println!("{rate:.0} {:.2} {:.2}", milliseconds(&times, 0.5), milliseconds(&times, 0.99));
    Ok(())
}
