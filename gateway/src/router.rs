//! The routers, and connections to them.
//!
//! Routers are tried in their order. The first one that can be reached is used until it fails; one that is a standby is tried last from
//! then on.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::{Host, SslMode};
use tokio_rustls::TlsConnector;

/// The time within which a router must accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a router: TCP, TLS or a Unix socket.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[derive(Clone, Debug)]
enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// One router.
#[derive(Clone)]
pub struct Router {
    address: Address,
    pub database: String,
    tls: Option<TlsConnector>,
    /// its place in the list
    number: usize,
}

#[derive(Clone)]
pub struct Routers {
    all: Arc<[Router]>,
    /// the number of the router that is tried first
    current: Arc<AtomicUsize>,
    /// the password of the anonymous role, if a connection string or `--router-password-file` gives one
    pub password: Option<Vec<u8>>,
}

/// Without the password.
impl std::fmt::Debug for Routers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all.iter().map(|router| &router.address)).finish()
    }
}

impl Routers {
    /// Reads connection strings, each of which may name several hosts. `tls`: for `sslmode=require`.
    pub fn parse(strings: &[String], tls: Option<&TlsConnector>) -> Result<Self, String> {
        let mut all = Vec::new();
        let mut password = None;
        for string in strings {
            // The message of an error does not quote the string, which may hold a password.
            let config: tokio_postgres::Config = string.parse().map_err(|error| format!("--router: {error}"))?;
            let tls = match (config.get_ssl_mode(), tls) {
                (SslMode::Require, None) => return Err("--router: sslmode=require needs --router-ca".to_owned()),
                (SslMode::Require, Some(tls)) => Some(tls.clone()),
                (_, Some(_)) => return Err("--router-ca needs sslmode=require in --router".to_owned()),
                (_, None) => None,
            };
            if let Some(given) = config.get_password() {
                password = Some(given.to_vec());
            }
            let database = config.get_dbname().ok_or("--router: the connection string names no database (dbname)")?;
            if config.get_hosts().is_empty() {
                return Err("--router: the connection string names no host".to_owned());
            }
            for (position, host) in config.get_hosts().iter().enumerate() {
                let ports = config.get_ports();
                let port = ports.get(position).or(ports.first()).copied().unwrap_or(5432);
                let address = match host {
                    Host::Tcp(host) => Address::Tcp(host.clone(), port),
                    Host::Unix(folder) => Address::Unix(folder.join(format!(".s.PGSQL.{port}"))),
                };
                let number = all.len();
                all.push(Router { address, database: database.to_owned(), tls: tls.clone(), number });
            }
        }
        if all.is_empty() {
            return Err("--router is missing".to_owned());
        }
        Ok(Self { all: all.into(), current: Arc::default(), password })
    }

    #[cfg(test)]
    pub fn first(&self) -> Router {
        self.all[0].clone()
    }

    /// The other routers, beginning with the one after this router.
    pub fn others(&self, router: &Router) -> impl Iterator<Item = &Router> {
        self.all.iter().cycle().skip(router.number + 1).take(self.all.len() - 1)
    }

    /// Makes the next router the first one to be tried, if this router was.
    pub fn pass_over(&self, router: &Router) {
        let next = (router.number + 1) % self.all.len();
        let _ = self.current.compare_exchange(router.number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Connects to the first router that can be reached.
    pub async fn connect(&self) -> io::Result<(Router, Box<dyn Stream>)> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let first = self.current.load(Ordering::Relaxed);
        for router in self.all.iter().cycle().skip(first).take(self.all.len()) {
            match router.connect().await {
                Ok(stream) => {
                    self.current.store(router.number, Ordering::Relaxed);
                    return Ok((router.clone(), stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Router {
    pub async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.open()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        match &self.address {
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp(host, port) => {
                let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
                let mut request = bytes::BytesMut::new();
                postgres_protocol::message::frontend::ssl_request(&mut request);
                stream.write_all(&request).await?;
                if stream.read_u8().await? != b'S' {
                    return Err(io::Error::other("the router does not offer TLS"));
                }
                let name = rustls_pki_types::ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_name_hosts_and_a_database() {
        let parse = |strings: &[&str]| {
            let strings: Vec<String> = strings.iter().map(|string| (*string).to_owned()).collect();
            Routers::parse(&strings, None).map(|routers| format!("{routers:?}"))
        };
        let two = parse(&["postgresql://a:1,b:2/docs", "host=/run/pg dbname=docs port=6"]).unwrap();
        assert_eq!(two, r#"[Tcp("a", 1), Tcp("b", 2), Unix("/run/pg/.s.PGSQL.6")]"#);
        assert_eq!(parse(&["postgresql://me:secret@a/docs"]).unwrap(), r#"[Tcp("a", 5432)]"#);
        for wrong in [&[][..], &["postgresql://a"], &["dbname=x"], &["postgresql://a/x?sslmode=require"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let routers = Routers::parse(&["postgresql://a,b,c/docs".to_owned()], None).unwrap();
        let others: Vec<usize> = routers.others(&routers.all[1]).map(|router| router.number).collect();
        assert_eq!(others, [2, 0]);
        routers.pass_over(&routers.all[0]);
        routers.pass_over(&routers.all[0]);
        assert_eq!(routers.current.load(Ordering::Relaxed), 1, "only who is first is passed over");
        assert!(!parse(&["postgresql://me:secret@a:none/x"]).unwrap_err().contains("secret"));
    }
}
