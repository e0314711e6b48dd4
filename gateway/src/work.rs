//! Runs computations whose time grows with the size of a message, or is long, outside of the threads that serve connections. One client may
//! use at most half of the threads for them.
//!
//! INVARIANT: computations on the threads that serve connections end soon, whatever a client has sent.

use crate::memory::{Owner, SMALL};
use crate::shares::Shares;
use std::io;
use std::sync::Arc;

/// The size that stands for work that takes long whatever its size.
pub const LONG: usize = usize::MAX;

#[derive(Clone, Debug)]
pub struct Work {
    shares: Arc<Shares<Owner>>,
}

impl Work {
    pub fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
        Self { shares: Arc::new(Shares::new(threads, threads / 2)) }
    }

    /// Runs work on this many bytes. It continues even if the caller is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &Owner,
        size: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if size <= SMALL {
            return Ok(work());
        }
        let share = self.shares.take(owner, 1).await;
        let done = tokio::task::spawn_blocking(move || {
            let _share = share;
            work()
        });
        done.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// The runtime has one thread for connections.
    #[tokio::test]
    async fn long_work_of_a_client_stops_no_other() {
        let work = Work::new();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let eve = Owner::Role("eve".to_owned());
        let long: Vec<_> = (0..64)
            .map(|_| {
                let (work, eve, released) = (work.clone(), eve.clone(), released.clone());
                tokio::spawn(async move { work.run(&eve, LONG, move || released.lock().unwrap().recv()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(work.run(&eve, SMALL, || 1).await.unwrap(), 1);
        let ann = Owner::Role("ann".to_owned());
        let other = work.run(&ann, LONG, || 2);
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), other).await.unwrap().unwrap(), 2);
        drop(release);
        for one in long {
            one.await.unwrap().unwrap().unwrap_err();
        }
    }
}
