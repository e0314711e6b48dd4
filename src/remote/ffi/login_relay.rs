//! Limits what a server can send while libpq logs in.
//!
//! libpq reads whatever has arrived, and keeps messages of any length. So from the moment when the socket is connected until the login is
//! complete, libpq's descriptor is one end of a socket pair. What the server sends is copied into the other end: at most [`STEP`] bytes for
//! each call of libpq, and [`MAX_LOGIN`] bytes in total. Messages that would keep libpq busy are refused: see [`LoginMessages`]. A TLS record is
//! copied alone; OpenSSL shows what it holds before libpq reads that.

use super::channel::Channel;
use docshard_core::cluster::login::LoginMessages;
use std::ffi::{c_int, c_void};
use std::io::{Error, ErrorKind};

/// The largest number of bytes that a server may send during a login: messages of authentication, certificates, settings.
const MAX_LOGIN: usize = 1 << 20;

/// The most bytes that are copied before libpq is called. libpq's buffer is larger, so libpq reads all of them at once.
const STEP: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct LoginRelay {
    /// libpq's descriptor, which is one end of the pair
    place: c_int,
    /// the server's socket
    server: Descriptor,
    /// the other end of the pair
    feed: Descriptor,
    /// the identity of libpq's end of the pair
    end: (libc::dev_t, libc::ino_t),
    copied: usize,
    messages: LoginMessages,
    decrypted: LoginMessages,
}

const VIOLATION: &str =
    "protocol violation: the server asks for too many iterations of SCRAM, or its authentication is malformed";

const UNREAD: &str = "libpq has not read the server's answer to the login";

#[derive(Debug)]
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { libc::close(self.0) };
    }
}

/// The identity of an open socket.
fn identity(descriptor: c_int) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: a struct of integers, for which zeros are valid; fstat writes it.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &raw mut found) == 0).then_some((found.st_dev, found.st_ino))
    }
}

/// Reads without waiting; None if nothing has arrived, 0 at the end or after an error.
fn receive(from: c_int, buffer: &mut [u8], flags: c_int) -> Option<usize> {
    // SAFETY: the buffer is as long as said.
    let read =
        unsafe { libc::recv(from, buffer.as_mut_ptr().cast::<c_void>(), buffer.len(), flags | libc::MSG_DONTWAIT) };
    match usize::try_from(read) {
        Ok(read) => Some(read),
        Err(_) => match Error::last_os_error().kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => None,
            _ => Some(0),
        },
    }
}

/// Writes all bytes at once; None if that fails. There are few bytes, and the receiver's buffer is empty, so a partial write is a failure.
fn send(to: c_int, bytes: &[u8]) -> Option<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the buffer is as long as said.
    let sent = unsafe { libc::send(to, bytes.as_ptr().cast::<c_void>(), bytes.len(), flags) };
    (usize::try_from(sent) == Ok(bytes.len())).then_some(())
}

impl LoginRelay {
    /// Replaces the socket of a connection. None if no file descriptor is free.
    pub(super) fn begin(place: c_int) -> Option<Self> {
        let mut pair = [-1; 2];
        // SAFETY: the array has two elements. The descriptors are this function's own, except `place`, which libpq keeps.
        unsafe {
            let server = libc::fcntl(place, libc::F_DUPFD_CLOEXEC, 0);
            if server < 0 {
                return None;
            }
            let server = Descriptor(server);
            if libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) != 0 {
                return None;
            }
            let (feed, end) = (Descriptor(pair[0]), Descriptor(pair[1]));
            libc::fcntl(feed.0, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(end.0, libc::F_SETFL, libc::O_NONBLOCK);
            let end_identity = identity(end.0)?;
            if libc::dup2(end.0, place) < 0 {
                return None;
            }
            libc::fcntl(place, libc::F_SETFD, libc::FD_CLOEXEC);
            let (messages, decrypted) = (LoginMessages::default(), LoginMessages::of_tls());
            Some(Self { place, server, feed, end: end_identity, copied: 0, messages, decrypted })
        }
    }

    /// The server's socket, for waiting.
    pub(super) fn socket(&self) -> c_int {
        self.server.0
    }

    /// True while libpq uses this socket pair. libpq may close its end and connect again, for example without TLS.
    pub(super) fn is_used(&self) -> bool {
        identity(self.place) == Some(self.end)
    }

    /// Passes what has arrived from the server on to libpq, or says why the login is refused.
    pub(super) fn feed(&mut self) -> Result<(), &'static str> {
        let mut buffer = [0; STEP];
        let limit = self.messages.limit().min(STEP);
        match receive(self.server.0, &mut buffer[..limit], 0) {
            None => Ok(()),
            Some(0) => {
                // SAFETY: owned. A second shutdown has no effect.
                unsafe { libc::shutdown(self.feed.0, libc::SHUT_WR) };
                Ok(())
            }
            Some(length) => {
                self.copied += length;
                if !self.messages.accept(&buffer[..length]) {
                    return Err(VIOLATION);
                }
                if self.copied > MAX_LOGIN {
                    return Err("protocol violation: the server's answer to the login is too long");
                }
                send(self.feed.0, &buffer[..length]).ok_or(UNREAD)
            }
        }
    }

    /// Like [`LoginRelay::feed`], after the handshake of TLS. The record that is passed on is judged, so libpq must have read the one before.
    ///
    /// # Safety
    /// The channel is the TLS session of this connection, which is open.
    pub(super) unsafe fn feed_tls(&mut self, channel: &Channel) -> Result<(), &'static str> {
        // SAFETY: the caller's promise.
        if unsafe { channel.pending() } > 0 {
            return Err(UNREAD);
        }
        self.feed()?;
        let mut record = [0; 1 << 14];
        // SAFETY: the caller's promise.
        let length = unsafe { channel.peek(&mut record) };
        self.decrypted.accept(&record[..length]).then_some(()).ok_or(VIOLATION)
    }

    /// Sends the server what libpq has written; false if that is not possible.
    pub(super) fn forward(&mut self) -> bool {
        let mut buffer = [0; STEP];
        loop {
            match receive(self.feed.0, &mut buffer, 0) {
                None | Some(0) => return true,
                Some(length) if send(self.server.0, &buffer[..length]).is_none() => return false,
                Some(_) => {}
            }
        }
    }

    /// How many bytes, of at most [`STEP`], libpq has not read.
    pub(super) fn unread(&self) -> usize {
        receive(self.place, &mut [0; STEP], libc::MSG_PEEK).unwrap_or(0)
    }

    /// Gives libpq its socket back. False if the server has sent more than the login, or the socket could not be given back.
    pub(super) fn end(self) -> bool {
        let unread = self.unread();
        // SAFETY: both descriptors are open; `place` is libpq's, which keeps it.
        unsafe {
            libc::dup2(self.server.0, self.place) >= 0
                && libc::fcntl(self.place, libc::F_SETFD, libc::FD_CLOEXEC) >= 0
                && unread == 0
        }
    }
}
