//! A TCP proxy on loopback, with which tests cut, delay and block traffic between clients and servers, and count round trips.
//!
//! Each connection has two threads, one per direction. When a connection is cut, bytes in transit are lost.
//!
//! A round trip begins when the client sends something after it got an answer, or for the first time. With a delay, requests
//! that the client sends without waiting for an answer belong to one round trip.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How a proxy treats its traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The delay, each way.
    pub delay: Duration,
    /// New connections are refused.
    pub refuse: bool,
    /// Requests are held up until this is false again.
    pub hold_requests: bool,
    /// Answers are held up until this is false again.
    pub hold_answers: bool,
}

/// A proxy before one server. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// The port on which it listens, at 127.0.0.1.
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    conditions: Conditions,
    connections: Vec<Connection>,
    /// Round trips of all connections, also of closed ones.
    round_trips: BTreeMap<u64, RoundTrips>,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    fn cut(self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

#[derive(Debug, Default)]
struct RoundTrips {
    /// The first bytes that the client sent.
    first: Vec<u8>,
    count: usize,
    /// The client has sent something since the last answer.
    is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

impl Proxy {
    /// A proxy before the server at a port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let server = SocketAddr::from(([127, 0, 0, 1], server));
        let shared = Arc::new(Shared { server, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.state().closed {
                    return;
                }
                if let Ok(client) = client {
                    accepting.connect(client);
                }
            }
        });
        Self { port, shared }
    }

    /// Changes the treatment of traffic from now on.
    pub fn set(&self, conditions: Conditions) {
        self.shared.state().conditions = conditions;
        self.shared.changed.notify_all();
    }

    /// Cuts all connections. New ones are accepted unless the [`Conditions`] refuse them.
    pub fn cut(&self) {
        std::mem::take(&mut self.shared.state().connections).into_iter().for_each(Connection::cut);
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// The number of round trips on connections whose first message contains this text, such as an `application_name`.
    pub fn round_trips(&self, text: &str) -> usize {
        let state = self.shared.state();
        let of_text = |trips: &&RoundTrips| trips.first.windows(text.len()).any(|part| part == text.as_bytes());
        state.round_trips.values().filter(of_text).map(|trips| trips.count).sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Conditions::default());
        self.shared.state().closed = true;
        self.cut();
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, client: TcpStream) {
        if self.state().conditions.refuse {
            return;
        }
        // The client sees a refused connection, as without a proxy.
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let mut copies = Vec::new();
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            for _ in 0..2 {
                copies.extend(stream.try_clone());
            }
        }
        let Ok([client_in, client_out, server_in, server_out]) = <[TcpStream; 4]>::try_from(copies) else { return };
        let number = {
            let mut state = self.state();
            state.next += 1;
            let number = state.next;
            state.connections.push(Connection { number, client, server });
            number
        };
        let (requests, answers) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || requests.carry(number, client_in, server_out, Direction::Requests));
        thread::spawn(move || answers.carry(number, server_in, client_out, Direction::Answers));
    }

    fn carry(&self, number: u64, mut from: TcpStream, mut to: TcpStream, direction: Direction) {
        let holds = |conditions: &Conditions| match direction {
            Direction::Requests => conditions.hold_requests,
            Direction::Answers => conditions.hold_answers,
        };
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if direction == Direction::Requests {
                self.state().round_trips.entry(number).or_default().note_request(&buffer[..length]);
            }
            let delay = self.state().conditions.delay;
            if !delay.is_zero() {
                thread::sleep(delay);
            }
            let mut state = self.state();
            while holds(&state.conditions) && state.connections.iter().any(|other| other.number == number) {
                let wait = self.changed.wait_timeout(state, Duration::from_millis(50));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
            // Bytes in transit on a connection that was cut are lost.
            let cut = !state.connections.iter().any(|other| other.number == number);
            if direction == Direction::Answers {
                state.round_trips.entry(number).or_default().is_open = false;
            }
            drop(state);
            if cut || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        // One end has closed. Bytes sent before still reach the other.
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
        let mut state = self.state();
        if let Some(place) = state.connections.iter().position(|other| other.number == number) {
            let connection = state.connections.swap_remove(place);
            drop(state);
            connection.cut();
        }
    }
}

impl RoundTrips {
    fn note_request(&mut self, bytes: &[u8]) {
        if self.first.is_empty() {
            self.first = bytes.to_vec();
        }
        self.count += usize::from(!self.is_open);
        self.is_open = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each byte with the next one.
    fn server() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() {
                        byte[0] += 1;
                        stream.write_all(&byte).unwrap();
                    }
                });
            }
        });
        port
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        stream.write_all(&[byte])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn it_carries_holds_and_cuts() {
        let proxy = Proxy::before(server());
        let connect = || TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        let mut stream = connect();
        assert_eq!(ask(&mut stream, 1).unwrap(), 2);
        assert_eq!(proxy.connections(), 1);

        for (hold_requests, hold_answers) in [(true, false), (false, true)] {
            proxy.set(Conditions { hold_requests, hold_answers, ..Conditions::default() });
            ask(&mut stream, 3).unwrap_err();
            proxy.set(Conditions::default());
            let mut late = [0];
            stream.set_read_timeout(None).unwrap();
            stream.read_exact(&mut late).unwrap();
            assert_eq!(late[0], 4, "what was held up arrives");
        }

        proxy.cut();
        assert!(ask(&mut stream, 5).is_err());
        assert_eq!(ask(&mut connect(), 5).unwrap(), 6);

        proxy.set(Conditions { refuse: true, ..Conditions::default() });
        assert!(ask(&mut connect(), 7).is_err());
    }

    #[test]
    fn it_counts_round_trips() {
        let proxy = Proxy::before(server());
        proxy.set(Conditions { delay: Duration::from_millis(100), ..Conditions::default() });
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        for expected in 1..=2 {
            // Two requests, sent without waiting for the first answer.
            stream.write_all(b"a").unwrap();
            thread::sleep(Duration::from_millis(10));
            stream.write_all(b"b").unwrap();
            let mut answers = [0; 2];
            stream.read_exact(&mut answers).unwrap();
            assert_eq!(&answers, b"bc");
            assert_eq!((proxy.round_trips("a"), proxy.round_trips("x")), (expected, 0));
        }
    }
}
