//! Non-blocking byte I/O on a connection that libpq has established, directly on its socket or through its TLS session.
//!
//! libpq buffers messages of any length, and any number of notifications and settings, before it returns, so a shard could exhaust
//! this process's memory. So libpq only connects. Afterwards this module reads and writes, and `docshard_core::cluster::frontend` decodes. The
//! functions of OpenSSL are those of the library that libpq itself uses.

use super::backend::text;
use std::ffi::{CStr, c_int, c_long, c_ulong, c_void};
use std::io::{Error, ErrorKind, Result};
use std::ptr::NonNull;
use std::sync::OnceLock;

type Transfer = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> c_int;

/// Functions of OpenSSL.
struct OpenSsl {
    read: Transfer,
    /// SSL_write does not change the bytes, although `Transfer` takes a mutable pointer
    write: Transfer,
    peek: Transfer,
    pending: unsafe extern "C" fn(*const c_void) -> c_int,
    get_error: unsafe extern "C" fn(*const c_void, c_int) -> c_int,
    clear_error: unsafe extern "C" fn(),
    reason: unsafe extern "C" fn() -> c_ulong,
    control: unsafe extern "C" fn(*mut c_void, c_int, c_long, *mut c_void) -> c_long,
    set_options: unsafe extern "C" fn(*mut c_void, u64) -> u64,
}

const SSL_CTRL_CLEAR_MODE: c_int = 78;
const SSL_OP_NO_RENEGOTIATION: u64 = 1 << 30;
const SSL_MODE_AUTO_RETRY: c_long = 4;
const SSL_ERROR_WANT_READ: c_int = 2;
const SSL_ERROR_WANT_WRITE: c_int = 3;
const SSL_ERROR_ZERO_RETURN: c_int = 6;

#[derive(Debug)]
pub(super) enum Channel {
    Plain,
    Tls(NonNull<c_void>),
}

impl Channel {
    /// The channel of a connection that libpq has made; None if it is encrypted by GSSAPI or by another library than OpenSSL.
    ///
    /// # Safety
    /// `conn` is a connection of libpq.
    pub(super) unsafe fn of(conn: *mut pq_sys::PGconn) -> Option<Self> {
        // SAFETY: the caller's promise; the session belongs to the connection.
        unsafe {
            if pq_sys::PQgssEncInUse(conn) != 0 {
                return None;
            }
            if pq_sys::PQsslInUse(conn) == 0 {
                return Some(Self::Plain);
            }
            let session = NonNull::new(pq_sys::PQsslStruct(conn, c"OpenSSL".as_ptr()))?;
            let openssl = openssl()?;
            // In this mode SSL_read does not return while records without data arrive, so interrupts would not be served.
            (openssl.control)(session.as_ptr(), SSL_CTRL_CLEAR_MODE, SSL_MODE_AUTO_RETRY, std::ptr::null_mut());
            // During a renegotiation SSL_write waits for the server.
            (openssl.set_options)(session.as_ptr(), SSL_OP_NO_RENEGOTIATION);
            Some(Self::Tls(session))
        }
    }

    /// Reads what has arrived, at most as much as the buffer holds; 0 at the end of the stream.
    ///
    /// # Safety
    /// The socket and the session belong to one open connection.
    pub(super) unsafe fn read(&self, socket: c_int, buffer: &mut [u8]) -> Result<usize> {
        let (bytes, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        match self {
            // SAFETY: the buffer is as long as said.
            Self::Plain => transfer_plain(|| unsafe { libc::recv(socket, bytes, length, libc::MSG_DONTWAIT) }),
            // SAFETY: the caller's promise; the buffer is as long as said.
            Self::Tls(session) => unsafe { transfer_tls(session, |openssl| openssl.read, bytes, length) },
        }
    }

    /// Copies what the TLS session decrypts of the bytes that have arrived, and leaves it there for libpq; 0 if that is nothing, or if it
    /// fails, as libpq's next read does then.
    ///
    /// # Safety
    /// The session belongs to an open connection.
    pub(super) unsafe fn peek(&self, buffer: &mut [u8]) -> usize {
        let (bytes, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        match self {
            Self::Plain => 0,
            // SAFETY: the caller's promise; the buffer is as long as said.
            Self::Tls(session) => unsafe { transfer_tls(session, |openssl| openssl.peek, bytes, length) }.unwrap_or(0),
        }
    }

    /// How many bytes of a record have been decrypted, but not been read.
    ///
    /// # Safety
    /// The session belongs to an open connection.
    pub(super) unsafe fn pending(&self) -> usize {
        let (Self::Tls(session), Some(openssl)) = (self, openssl()) else { return 0 };
        // SAFETY: the caller's promise.
        let pending = unsafe { (openssl.pending)(session.as_ptr()) };
        pending.try_into().unwrap_or(0)
    }

    /// Writes what the socket accepts. A write that failed with `WouldBlock` must be repeated with the same bytes first.
    ///
    /// # Safety
    /// The same as for [`Channel::read`].
    pub(super) unsafe fn write(&self, socket: c_int, buffer: &[u8]) -> Result<usize> {
        let (bytes, length) = (buffer.as_ptr().cast::<c_void>(), buffer.len());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match self {
            // SAFETY: the buffer is as long as said.
            Self::Plain => transfer_plain(|| unsafe { libc::send(socket, bytes, length, flags) }),
            // SAFETY: the caller's promise; the buffer is as long as said, and `write` only reads it.
            Self::Tls(session) => unsafe { transfer_tls(session, |openssl| openssl.write, bytes.cast_mut(), length) },
        }
    }
}

/// Reads or writes by a system call, which is repeated if a signal interrupts it.
fn transfer_plain(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => match Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Reads or writes by a function of OpenSSL. Returns 0 at the end of the stream, and if OpenSSL fails without an error in its queue, as it
/// does for an error of the socket (SSL_ERROR_SYSCALL).
///
/// # Safety
/// The session is alive, and the buffer has `length` bytes.
unsafe fn transfer_tls(
    session: &NonNull<c_void>,
    function: impl Fn(&OpenSsl) -> Transfer,
    bytes: *mut c_void,
    length: usize,
) -> Result<usize> {
    let Some(openssl) = openssl() else { return Err(ErrorKind::Unsupported.into()) };
    // SAFETY: the caller's promise; these are OpenSSL's functions. Errors of other connections of this thread are cleared first.
    unsafe {
        (openssl.clear_error)();
        let count = function(openssl)(session.as_ptr(), bytes, c_int::try_from(length).unwrap_or(c_int::MAX));
        match usize::try_from(count) {
            Ok(count) if count > 0 => return Ok(count),
            _ => {}
        }
        let error = (openssl.get_error)(session.as_ptr(), count);
        let has_reason = (openssl.reason)() != 0;
        (openssl.clear_error)();
        match error {
            SSL_ERROR_WANT_READ | SSL_ERROR_WANT_WRITE => Err(ErrorKind::WouldBlock.into()),
            SSL_ERROR_ZERO_RETURN => Ok(0),
            _ if has_reason => Err(Error::other("TLS error")),
            _ => Ok(0),
        }
    }
}

/// The functions of the OpenSSL library that libpq uses; None if libpq is built without OpenSSL.
fn openssl() -> Option<&'static OpenSsl> {
    static FOUND: OnceLock<Option<OpenSsl>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref()
}

fn find() -> Option<OpenSsl> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the struct is written only; the library is loaded and stays, and its name is a C string.
    let library = unsafe {
        if libc::dladdr(pq_sys::PQsocket as *const c_void, &raw mut info) == 0 || text(info.dli_fname).is_none() {
            return None;
        }
        libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
    };
    if library.is_null() {
        return None;
    }
    // dlsym also searches the libraries on which libpq depends.
    // SAFETY: the library is open.
    let symbol = |name: &CStr| NonNull::new(unsafe { libc::dlsym(library, name.as_ptr()) });
    // SAFETY: OpenSSL's functions of these names have these types, in all versions since 1.1.
    unsafe {
        Some(OpenSsl {
            read: std::mem::transmute::<NonNull<c_void>, Transfer>(symbol(c"SSL_read")?),
            write: std::mem::transmute::<NonNull<c_void>, Transfer>(symbol(c"SSL_write")?),
            peek: std::mem::transmute::<NonNull<c_void>, Transfer>(symbol(c"SSL_peek")?),
            pending: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*const c_void) -> c_int>(symbol(
                c"SSL_pending",
            )?),
            get_error: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*const c_void, c_int) -> c_int>(
                symbol(c"SSL_get_error")?,
            ),
            clear_error: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn()>(symbol(c"ERR_clear_error")?),
            control: std::mem::transmute::<
                NonNull<c_void>,
                unsafe extern "C" fn(*mut c_void, c_int, c_long, *mut c_void) -> c_long,
            >(symbol(c"SSL_ctrl")?),
            set_options: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut c_void, u64) -> u64>(symbol(
                c"SSL_set_options",
            )?),
            reason: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> c_ulong>(symbol(
                c"ERR_peek_error",
            )?),
        })
    }
}
