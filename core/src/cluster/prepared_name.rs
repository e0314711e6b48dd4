//! The names of a router's prepared transactions at shards, which identify the router.
//!
//! `docshard_<cluster><transaction>_e<epoch>_<process>_<transaction>_<counter>_<server>`: cluster and transaction in hexadecimal, 16
//! and 8 digits. The epoch is the router's: a router with another epoch must not commit or roll back the transaction. Names
//! without an epoch come from the cluster's first router, before names had one.

/// The prefix of the names of all transactions that routers prepare at shards.
pub const PREFIX: &str = "docshard_";

/// The epoch of a cluster's first router.
pub const FIRST_EPOCH: i64 = 1;

/// The router that a name identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinator {
    /// the cluster's number
    pub cluster: i64,
    /// the router's epoch
    pub epoch: i64,
}

/// The owner of a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// this router, with the number of its local transaction
    Own(u32),
    /// another router of the same cluster
    Other,
}

impl Coordinator {
    /// The part of the names of one local transaction between [`PREFIX`] and the process.
    #[must_use]
    pub fn token(&self, transaction: u32) -> String {
        format!("{}{transaction:08x}_e{}", self.cluster_digits(), self.epoch)
    }

    /// The prefix of the names of one local transaction.
    #[must_use]
    pub fn prefix(&self, transaction: u32) -> String {
        format!("{PREFIX}{}_", self.token(transaction))
    }

    /// The prefix of the names of the transactions of all routers of the cluster.
    #[must_use]
    pub fn cluster_prefix(&self) -> String {
        format!("{PREFIX}{}", self.cluster_digits())
    }

    fn cluster_digits(&self) -> String {
        format!("{:016x}", self.cluster)
    }

    /// The owner of the transaction of that name; None if the name belongs to no router of this cluster.
    #[must_use]
    pub fn origin(&self, name: &str) -> Option<Origin> {
        let rest = name.strip_prefix(&self.cluster_prefix())?;
        let (transaction, rest) = (rest.get(..8)?, rest.get(8..)?.strip_prefix('_')?);
        let transaction = u32::from_str_radix(transaction, 16).ok()?;
        let field = rest.split('_').next().unwrap_or_default();
        let epoch = match field.strip_prefix('e') {
            Some(digits) => digits.parse().ok(),
            None => Some(FIRST_EPOCH),
        };
        Some(if epoch == Some(self.epoch) { Origin::Own(transaction) } else { Origin::Other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Coordinator = Coordinator { cluster: 0x1234, epoch: 1 };
    const THIRD: Coordinator = Coordinator { cluster: 0x1234, epoch: 3 };
    const STRANGER: Coordinator = Coordinator { cluster: -1, epoch: 1 };

    #[test]
    fn a_name_tells_its_router() {
        for router in [FIRST, THIRD] {
            let name = format!("{}4711_750_0_16390", router.prefix(750));
            assert!(name.starts_with("docshard_0000000000001234000002ee_e"), "{name}");
            for other in [FIRST, THIRD] {
                let expected = if other == router { Origin::Own(750) } else { Origin::Other };
                assert_eq!(other.origin(&name), Some(expected), "{name}");
            }
            assert_eq!(STRANGER.origin(&name), None);
        }
        assert!(STRANGER.prefix(1).starts_with("docshard_ffffffffffffffff00000001_e1_"));
    }

    #[test]
    fn names_without_an_epoch_are_the_first_routers() {
        let name = "docshard_0000000000001234000002ee_4711_750_0_16390";
        assert_eq!(FIRST.origin(name), Some(Origin::Own(750)));
        assert_eq!(THIRD.origin(name), Some(Origin::Other));
    }

    #[test]
    fn other_names_are_nobodys() {
        for name in [
            "",
            "docshard_",
            "docshard_m_4660_1_t",
            "x",
            "docshard_0000000000001234",
            "docshard_0000000000001234zzzzzzzz_e1_1",
        ] {
            assert_eq!(FIRST.origin(name), None, "{name}");
        }
        assert_eq!(FIRST.origin("docshard_0000000000001234000002ee_e_1"), Some(Origin::Other));
    }
}
