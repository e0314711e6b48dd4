//! A server on loopback that stands before a shard, and sends something of its own instead of the shard's answers.
//!
//! It passes on what the router sends, and the shard's messages up to one of the kind that the attack waits for. It may also change rows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The bytes that are sent instead of an answer.
#[derive(Clone, Debug)]
pub struct Attack {
    /// The type of the shard's message that is replaced: the first message of this type after the login, or in the login.
    pub instead_of: u8,
    /// True if the message is one of the login.
    pub at_login: bool,
    /// The bytes that are sent first.
    pub first: Vec<u8>,
    /// The bytes that are sent after that, again and again; the function gets the number of the repetition. If they are empty, the shard's
    /// messages are passed on again.
    pub then: fn(usize) -> Vec<u8>,
    /// The pause between two repetitions.
    pub pause: Duration,
}

/// The values of a row's columns; None for NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// Changes a row.
pub type Change = Arc<dyn Fn(&mut Row) + Send + Sync>;

/// An impostor of a shard. Its connections end when it is dropped.
pub struct Impostor {
    /// The port on which it listens, at 127.0.0.1.
    pub port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    attack: Option<Attack>,
    /// for all rows after the login
    change: Option<Change>,
    /// The number of the present attack; an earlier one ends.
    number: usize,
    attacked: usize,
    streams: Vec<TcpStream>,
    paused: bool,
    closed: bool,
}

/// A message of the protocol.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = header(kind, body.len());
    message.extend_from_slice(body);
    message
}

/// The beginning of a message with a body of this length.
///
/// # Panics
/// If it is too long for a message.
pub fn header(kind: u8, length: usize) -> Vec<u8> {
    let length = u32::try_from(length + 4).expect("a length");
    [&[kind][..], &length.to_be_bytes()].concat()
}

/// The values of a row's message; None if it is malformed.
fn row_of(body: &[u8]) -> Option<Row> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut row = Row::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (value, tail) = match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) => (Some(tail.get(..length)?.to_vec()), tail.get(length..)?),
            Err(_) => (None, tail),
        };
        row.push(value);
        rest = tail;
    }
    Some(row)
}

/// A row's message.
fn of_row(row: &Row) -> Vec<u8> {
    let mut body = u16::try_from(row.len()).expect("a number of columns").to_be_bytes().to_vec();
    for value in row {
        let length = value.as_ref().map_or(-1, |value| i32::try_from(value.len()).expect("a length"));
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    message(b'D', &body)
}

/// Reads one message.
fn read(from: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 5];
    from.read_exact(&mut header)?;
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
    let mut body = vec![0; (length as usize).saturating_sub(4)];
    from.read_exact(&mut body)?;
    Ok((header[0], body))
}

impl Impostor {
    /// An impostor of the server at a port of 127.0.0.1, which attacks nobody yet. Clients must not ask for encryption.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn of(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if lock(&shared).closed {
                    return;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                lock(&shared).streams.extend([&client, &server].into_iter().flat_map(TcpStream::try_clone));
                let (Ok(mut up), Ok(mut to)) = (client.try_clone(), server.try_clone()) else { continue };
                thread::spawn(move || {
                    let _ = std::io::copy(&mut up, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let _ = serve(&shared, server, &client);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, state }
    }

    /// Starts an attack on the following connections; None: ends the present attack.
    pub fn set(&self, attack: Option<Attack>) {
        let mut state = lock(&self.state);
        state.attack = attack;
        state.number += 1;
        state.attacked = 0;
    }

    /// Changes all rows from now on; None: changes no more rows.
    pub fn change_rows(&self, change: Option<Change>) {
        lock(&self.state).change = change;
    }

    /// True: attacks no further connections until this is called with false.
    pub fn pause(&self, pause: bool) {
        lock(&self.state).paused = pause;
    }

    /// How many connections the present attack has met.
    pub fn attacked(&self) -> usize {
        lock(&self.state).attacked
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.set(None);
        let streams = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.streams)
        };
        streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// A server that asks every client for SCRAM with this number of iterations, until the test ends. Its list of mechanisms has `behind` at its end.
/// Returns its port at 127.0.0.1.
///
/// # Panics
/// If there is no free port.
pub fn scram_server(iterations: &'static str, behind: &'static [u8]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || challenge(&mut client, iterations, behind));
        }
    });
    port
}

/// Answers a login with a challenge that continues the client's nonce, and waits for the client to leave.
fn challenge(client: &mut TcpStream, iterations: &str, behind: &[u8]) -> std::io::Result<()> {
    let mut length = [0; 4];
    client.read_exact(&mut length)?;
    let mut startup = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4)];
    client.read_exact(&mut startup)?;
    client.write_all(&message(b'R', &[b"\0\0\0\x0aSCRAM-SHA-256\0\0", behind].concat()))?;
    let (_, first) = read(client)?;
    let first = String::from_utf8_lossy(&first).into_owned();
    let nonce = first.rsplit("r=").next().unwrap_or_default();
    let challenge = format!("r={nonce}ofTheServer,s=c2FsdHNhbHRzYWx0c2Fs,i={iterations}");
    client.write_all(&message(b'R', &[&[0, 0, 0, 11][..], challenge.as_bytes()].concat()))?;
    std::io::copy(client, &mut std::io::sink()).map(drop)
}

/// A server that speaks TLS and then misbehaves. It ends when it is dropped.
pub struct TlsServer {
    /// The port on which it listens, at 127.0.0.1.
    pub port: u16,
    server: Child,
    folder: PathBuf,
}

impl TlsServer {
    /// Lets a client log in, and then sends TLS records without data, without end.
    #[must_use]
    pub fn of_key_updates() -> Self {
        Self::start(&[])
    }

    /// Asks for this number of iterations of SCRAM, in records of one byte.
    #[must_use]
    pub fn of_scram(iterations: &str) -> Self {
        Self::start(&[iterations])
    }

    /// Asks for another handshake of TLS 1.2 during the login.
    #[must_use]
    pub fn of_renegotiation() -> Self {
        Self::start(&["renegotiate"])
    }

    /// Compiles and starts it, with a certificate of its own.
    fn start(arguments: &[&str]) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("docshard-tls-server.{}.{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name);
        let run = |program: &str, arguments: &str, files: &[&Path]| {
            let output = Command::new(program).args(arguments.split(' ')).args(files).output().expect(program);
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let (certificate, key, program) = (path("cert.pem"), path("key.pem"), path("server"));
        let request = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=127.0.0.1";
        run("openssl", &format!("{request} -keyout"), &[&key, Path::new("-out"), &certificate]);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tls_server.c");
        run("cc", "-o", &[&program, &source, Path::new("-lssl"), Path::new("-lcrypto")]);
        let mut server = Command::new(&program)
            .args([&certificate, &key])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().expect("its output")).read_line(&mut line).expect("its port");
        Self { port: line.trim().parse().expect("a port"), server, folder }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on the server's messages, and attacks.
fn serve(state: &Mutex<State>, mut server: TcpStream, mut client: &TcpStream) -> std::io::Result<()> {
    let mut logged_in = false;
    let mut met = 0;
    loop {
        let (kind, body) = read(&mut server)?;
        let (attack, number) = {
            let state = lock(state);
            (state.attack.clone().filter(|_| !state.paused), state.number)
        };
        let begins = |attack: &Attack| attack.instead_of == kind && attack.at_login != logged_in && met != number;
        if let Some(attack) = attack.filter(begins) {
            met = number;
            lock(state).attacked += 1;
            client.write_all(&attack.first)?;
            for count in 0.. {
                let part = (attack.then)(count);
                if part.is_empty() || lock(state).number != number {
                    break;
                }
                client.write_all(&part)?;
                thread::sleep(attack.pause);
            }
            if !(attack.then)(0).is_empty() {
                return Ok(());
            }
        }
        let change = lock(state).change.clone().filter(|_| logged_in && kind == b'D');
        let changed = change.and_then(|change| {
            let mut row = row_of(&body)?;
            change(&mut row);
            Some(of_row(&row))
        });
        logged_in |= kind == b'Z';
        client.write_all(&changed.unwrap_or_else(|| message(kind, &body)))?;
    }
}
