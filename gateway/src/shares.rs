//! A limit that all clients share, and of which one client (a role or an address) may use at most a part.
//!
//! INVARIANT: a client that waits for its own part holds nothing of the whole, so clients that have used up their parts do not delay
//! others. Part and whole are given in the order of waiting. Nobody may wait while it holds a share of the same limit.
//!
//! A limit may have a reserve, of which each client takes at most one. So a few clients with large parts leave something to others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub struct Shares<K> {
    /// without the reserve
    whole: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    part: usize,
    parts: Mutex<Parts<K>>,
}

#[derive(Debug)]
struct Parts<K> {
    of: HashMap<K, Weak<Part>>,
    /// when there are this many parts, those that nobody uses are removed
    full: usize,
}

#[derive(Debug)]
struct Part {
    free: Arc<Semaphore>,
    /// the client's single permit for the reserve
    reserved: Arc<Semaphore>,
}

/// With fewer parts than this, unused ones are not searched.
const FEW: usize = 64;

/// What was taken, until it is dropped.
#[derive(Debug)]
pub struct Share {
    _part: Arc<Part>,
    _permits: Vec<OwnedSemaphorePermit>,
}

impl<K: Hash + Eq + Clone> Shares<K> {
    pub fn new(whole: usize, part: usize) -> Self {
        Self::with_reserve(whole, part, 0)
    }

    /// Like [`Self::new`]; `reserve` of the whole form the reserve.
    pub fn with_reserve(whole: usize, part: usize, reserve: usize) -> Self {
        let parts = Mutex::new(Parts { of: HashMap::new(), full: FEW });
        let [general, reserve] = [whole - reserve, reserve].map(|count| Arc::new(Semaphore::new(count)));
        Self { whole: general, reserve, part: part.clamp(1, whole), parts }
    }

    /// Takes `count` of the limit; waits until they are free. A count larger than a client's part takes the whole part.
    pub async fn take(&self, client: &K, count: usize) -> Share {
        let count = u32::try_from(count.min(self.part)).unwrap_or(u32::MAX);
        let part = self.part_of(client);
        let own = taken(part.free.clone(), count).await;
        let reserved = async {
            if count > 1 {
                return std::future::pending().await;
            }
            let first = taken(part.reserved.clone(), 1).await;
            vec![first, taken(self.reserve.clone(), 1).await]
        };
        let mut permits = tokio::select! {
            biased;
            permit = taken(self.whole.clone(), count) => vec![permit],
            permits = reserved => permits,
        };
        permits.push(own);
        Share { _part: part, _permits: permits }
    }

    /// Takes `count` of the limit, without the reserve; None if they are not free.
    pub fn try_take(&self, client: &K, count: usize) -> Option<Share> {
        let count = u32::try_from(count.min(self.part)).unwrap_or(u32::MAX);
        let part = self.part_of(client);
        let own = part.free.clone().try_acquire_many_owned(count).ok()?;
        let whole = self.whole.clone().try_acquire_many_owned(count).ok()?;
        Some(Share { _part: part, _permits: vec![whole, own] })
    }

    fn part_of(&self, client: &K) -> Arc<Part> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.of.get(client).and_then(Weak::upgrade) {
            return part;
        }
        if parts.of.len() >= parts.full {
            parts.of.retain(|_, part| part.strong_count() > 0);
            parts.full = FEW.max(2 * parts.of.len());
        }
        let [free, reserved] = [self.part, 1].map(|count| Arc::new(Semaphore::new(count)));
        let part = Arc::new(Part { free, reserved });
        parts.of.insert(client.clone(), Arc::downgrade(&part));
        part
    }
}

/// The address by which a client counts: for IPv6 its network of 64 bits, as one host may use any address of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

async fn taken(semaphore: Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    match semaphore.acquire_many_owned(count).await {
        Ok(permit) => permit,
        // Only a semaphore that was closed refuses, and none is.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const SHORT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_client_cannot_take_the_part_of_another() {
        let shares = Shares::new(100, 50);
        let held = shares.take(&"a", 50).await;
        assert!(timeout(SHORT, shares.take(&"a", 1)).await.is_err());
        let other = timeout(SHORT, shares.take(&"b", 1000)).await.unwrap();
        assert!(timeout(SHORT, shares.take(&"c", 1)).await.is_err(), "the whole is taken");
        drop(held);
        assert!(timeout(SHORT, shares.take(&"c", 1)).await.is_ok());
        assert!(timeout(SHORT, shares.take(&"b", 1)).await.is_err());
        drop(other);
        assert!(timeout(SHORT, shares.take(&"b", 1)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn two_clients_leave_the_reserve_to_others() {
        let shares = Shares::with_reserve(30, 20, 4);
        let take = async |client: &'static str| timeout(SHORT, shares.take(&client, 1)).await;
        let mut held = HashMap::new();
        for client in ["a", "b"] {
            let own: &mut Vec<Share> = held.entry(client).or_default();
            while let Ok(share) = take(client).await {
                own.push(share);
            }
        }
        assert_eq!((held["a"].len(), held["b"].len()), (20, 7), "a part, and the rest with one of the reserve");
        let others = [take("c").await, take("d").await, take("e").await];
        assert!(others.iter().all(Result::is_ok) && take("c").await.is_err() && take("f").await.is_err());
        // Shares that were given back are available to every client.
        held.clear();
        assert!(take("c").await.is_ok() && take("a").await.is_ok());
    }

    #[test]
    fn what_is_not_free_is_not_taken() {
        let shares = Shares::new(3, 2);
        let held = (shares.try_take(&"a", 1), shares.try_take(&"a", 1));
        assert!(held.0.is_some() && held.1.is_some() && shares.try_take(&"a", 1).is_none());
        let other = shares.try_take(&"b", 1);
        assert!(other.is_some() && shares.try_take(&"c", 1).is_none());
        drop((held.0, other));
        assert!(shares.try_take(&"a", 1).is_some() && shares.try_take(&"c", 2).is_some());
    }

    #[test]
    fn a_host_has_one_address() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_longest_is_served_first() {
        let shares = Arc::new(Shares::new(10, 5));
        let held = shares.take(&"a", 5).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = [5, 1, 5, 1]
            .into_iter()
            .enumerate()
            .map(|(number, count)| {
                let (shares, order) = (shares.clone(), order.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(number as u64)).await;
                    let _share = shares.take(&"a", count).await;
                    order.lock().unwrap().push(number);
                    tokio::time::sleep(SHORT).await;
                })
            })
            .collect();
        tokio::time::sleep(SHORT).await;
        drop(held);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    }

    #[tokio::test]
    async fn clients_that_have_gone_are_forgotten() {
        let shares = Shares::new(10, 5);
        let held = shares.take(&0, 1).await;
        for client in 1..10_000 {
            shares.take(&client, 1).await;
        }
        let parts = shares.parts.lock().unwrap();
        assert!(parts.of.len() <= FEW && parts.of.contains_key(&0));
        drop(held);
    }
}
