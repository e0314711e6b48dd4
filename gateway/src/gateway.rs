//! What all connections share.

use crate::executor::Executor;
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::pool::{Identity, Pools};
use crate::router::Routers;
use crate::sasl::Context;
use crate::shares::{self, Shares};
use crate::tls;
use crate::work::Work;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

pub struct Gateway {
    pub executor: Arc<Executor>,
    pub anonymous: Option<Identity>,
    pub idle: Duration,
    hold: Duration,
    /// by address
    logins: Shares<IpAddr>,
    pub memory: Arc<Memory>,
    pub work: Work,
    /// by address
    pub connections: Shares<IpAddr>,
    /// by address: connections without a login: new ones, and those by which drivers monitor
    pub unknown: Shares<IpAddr>,
    pub tls: Option<TlsAcceptor>,
    #[cfg(feature = "fault_points")]
    pub fail_point: crate::fail_point::FailPoint,
}

impl Gateway {
    pub fn new(options: &Options) -> Result<Arc<Self>, String> {
        let mut routers = Routers::parse(&options.routers, options.router_ca.as_deref())?;
        if let Some(file) = &options.router_password_file {
            let text =
                std::fs::read_to_string(file).map_err(|error| format!("--router-password-file: {file}: {error}"))?;
            routers.password = text.lines().next().map(|line| line.as_bytes().to_vec());
        }
        let pools = Pools::new(options.pool_size, options.pool_timeout, options.hold_timeout);
        let tls = match (&options.certificate, &options.key) {
            (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
            (None, None) => None,
            _ => return Err("--certificate and --key belong together".to_owned()),
        };
        let anonymous = options.anonymous_role.clone();
        let executor = Executor::new(routers, pools, options.transaction_lifetime, anonymous.clone());
        Ok(Arc::new(Self {
            executor: Arc::new(executor),
            anonymous: anonymous.map(|role| Identity { role, generation: None }),
            idle: options.idle_timeout,
            hold: options.hold_timeout,
            logins: Shares::new(options.max_logins, options.max_logins.div_ceil(2)),
            memory: Arc::new(memory::new(options.message_memory)),
            work: Work::new(),
            connections: Shares::new(options.max_connections, options.max_connections.div_ceil(2)),
            unknown: Shares::new(options.max_unauthenticated, options.max_unauthenticated.div_ceil(2)),
            tls,
            #[cfg(feature = "fault_points")]
            fail_point: crate::fail_point::FailPoint::default(),
        }))
    }

    pub fn sasl(&self, client: IpAddr) -> Context<'_> {
        Context {
            client: shares::network(client),
            routers: &self.executor.routers,
            pools: &self.executor.pools,
            logins: &self.logins,
            hold: self.hold,
        }
    }
}
