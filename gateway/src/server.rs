//! Accepts clients, within limits.

use crate::connection::Connection;
use crate::executor::Executor;
use crate::options::Options;
use crate::pool::Pools;
use crate::router::Routers;
use crate::sasl::Context;
use crate::tls;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// The time for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The time between two looks for what is no longer needed.
const SWEEP: Duration = Duration::from_secs(60);

/// What all connections share.
pub struct Gateway {
    pub executor: Executor,
    pub anonymous: Option<String>,
    pub idle: Duration,
    logins: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    /// connections without a login: new ones, and those by which drivers monitor
    unknown: Arc<Semaphore>,
    tls: Option<TlsAcceptor>,
    next: AtomicI32,
}

impl Gateway {
    pub fn new(options: &Options) -> Result<Arc<Self>, String> {
        let routers = Routers::parse(&options.routers, options.router_ca.as_deref())?;
        let pools = Pools::new(options.pool_size, options.pool_timeout);
        let tls = match (&options.certificate, &options.key) {
            (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
            (None, None) => None,
            _ => return Err("--certificate and --key belong together".to_owned()),
        };
        let anonymous = options.anonymous_role.clone();
        let executor = Executor::new(routers, pools, anonymous.clone().map(|role| (role, options.pool_size)));
        Ok(Arc::new(Self {
            executor,
            anonymous,
            idle: options.idle_timeout,
            logins: Arc::new(Semaphore::new(options.max_logins)),
            connections: Arc::new(Semaphore::new(options.max_connections)),
            unknown: Arc::new(Semaphore::new(options.max_unauthenticated)),
            tls,
            next: AtomicI32::new(1),
        }))
    }

    pub fn sasl(&self) -> Context<'_> {
        Context { routers: &self.executor.routers, pools: &self.executor.pools, logins: &self.logins }
    }

    /// Accepts clients for ever.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let gateway = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                gateway.executor.sweep();
            }
        });
        loop {
            let (stream, client) = match listener.accept().await {
                Ok(accepted) => accepted,
                // Such as too many open files: others may be closed soon.
                Err(error) => {
                    eprintln!("docshard-gateway: accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let permit = self.connections.clone().try_acquire_owned();
            let unknown = self.unknown.clone().try_acquire_owned();
            let (Ok(permit), Ok(unknown)) = (permit, unknown) else {
                eprintln!("docshard-gateway: refused {client}: too many connections");
                continue;
            };
            let unknown = if self.anonymous.is_some() { None } else { Some(unknown) };
            tokio::spawn(self.clone().connection(stream, client, permit, unknown));
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        client: SocketAddr,
        _permit: OwnedSemaphorePermit,
        unknown: Option<OwnedSemaphorePermit>,
    ) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let served = match &self.tls {
            None => {
                let _ = stream.set_nodelay(true);
                Connection::new(self.clone(), stream, id, client, unknown).serve().await
            }
            Some(tls) => {
                let _ = stream.set_nodelay(true);
                match timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Connection::new(self.clone(), stream, id, client, unknown).serve().await,
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(io::ErrorKind::TimedOut.into()),
                }
            }
        };
        if let Err(error) = served
            && !matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            )
        {
            eprintln!("docshard-gateway: connection {id} of {client} closed: {error}");
        }
    }
}
