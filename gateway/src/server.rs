//! Accepts clients, within limits.

use crate::connection::Connection;
use crate::gateway::Gateway;
use crate::log;
use crate::shares::{Share, network};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// The time for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The time between two removals of what is no longer needed.
const SWEEP: Duration = Duration::from_secs(60);

/// The time between two searches for transactions whose time is over.
const TRANSACTIONS: Duration = Duration::from_millis(500);

/// Accepts clients for ever.
pub async fn serve(shared: Arc<Gateway>, listener: TcpListener) -> io::Result<()> {
    let gateway = shared.clone();
    let mut id = 0i32;
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SWEEP).await;
            gateway.executor.sweep();
            log::CLIENTS.flush();
            log::LOGINS.flush();
            log::ACCEPTS.flush();
        }
    });
    let executor = shared.executor.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TRANSACTIONS).await;
            executor.abort_overdue();
        }
    });
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            // An error such as too many open files may pass soon.
            Err(error) => {
                log::ACCEPTS.line(format_args!("accept: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let address = network(client.ip());
        let share = shared.connections.try_take(&address, 1);
        let unknown = shared.unknown.try_take(&address, 1);
        let (Some(share), true) = (share, unknown.is_some() || shared.anonymous.is_some()) else {
            log::CLIENTS.line(format_args!("refused {client}: too many connections"));
            continue;
        };
        let unknown = unknown.filter(|_| shared.anonymous.is_none());
        id = id.wrapping_add(1);
        tokio::spawn(connection(shared.clone(), stream, id, client, share, unknown));
    }
}

async fn connection(
    gateway: Arc<Gateway>,
    stream: TcpStream,
    id: i32,
    client: SocketAddr,
    _share: Share,
    unknown: Option<Share>,
) {
    let executor = gateway.executor.clone();
    let served = match gateway.tls.clone() {
        None => {
            let _ = stream.set_nodelay(true);
            Connection::new(gateway, stream, id, client, None, unknown).serve().await
        }
        Some(tls) => {
            let _ = stream.set_nodelay(true);
            match timeout(HANDSHAKE, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let certificate = shown.map(|certificate| certificate.clone().into_owned());
                    Connection::new(gateway, stream, id, client, certificate, unknown).serve().await
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    };
    executor.sessions.orphan(id);
    if let Err(error) = served
        && !matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        )
    {
        log::CLIENTS.line(format_args!("connection {id} of {client} closed: {error}"));
    }
}
