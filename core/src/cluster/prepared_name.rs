//! The names of a router's prepared transactions at shards, which identify the router.
//!
//! `docshard_<cluster><transaction>_e<epoch>_<process>_<transaction>_<counter>_<server>`: cluster and transaction in hexadecimal,
//! 16 and 8 digits. The epoch is the router's: a router with another epoch must not commit or roll back the transaction. Names
//! without an epoch come from the cluster's first router, before names had one. A transaction that decides a change of a
//! collection's layout has `_l<change>` after the epoch: after a failover that has lost the decision, the shards' state may show
//! the outcome of that change.

/// The prefix of the names of all transactions that routers prepare at shards.
pub const PREFIX: &str = "docshard_";

/// The epoch of a cluster's first router.
pub const FIRST_EPOCH: i64 = 1;

const EPOCH: char = 'e';
const CHANGE: char = 'l';

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
    /// The part of the names of one local transaction between [`PREFIX`] and the process; `change`: the change of layout that it decides.
    #[must_use]
    pub fn token(&self, transaction: u32, change: Option<i64>) -> String {
        let change = change.map(|change| format!("_{CHANGE}{change}")).unwrap_or_default();
        format!("{}{transaction:08x}_{EPOCH}{}{change}", self.cluster_digits(), self.epoch)
    }

    /// The prefix of the names of one local transaction.
    #[must_use]
    pub fn prefix(&self, transaction: u32) -> String {
        format!("{PREFIX}{}_", self.token(transaction, None))
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
        let (transaction, mut fields) = self.fields(name)?;
        let transaction = u32::from_str_radix(transaction, 16).ok()?;
        let epoch = match fields.next().unwrap_or_default().strip_prefix(EPOCH) {
            Some(digits) => digits.parse().ok(),
            None => Some(FIRST_EPOCH),
        };
        Some(if epoch == Some(self.epoch) { Origin::Own(transaction) } else { Origin::Other })
    }

    /// The change of layout that the transaction of that name decides.
    #[must_use]
    pub fn change(&self, name: &str) -> Option<i64> {
        let (_, mut fields) = self.fields(name)?;
        fields.nth(1)?.strip_prefix(CHANGE)?.parse().ok()
    }

    /// The digits of the transaction, and the fields after it.
    fn fields<'a>(&self, name: &'a str) -> Option<(&'a str, std::str::Split<'a, char>)> {
        let rest = name.strip_prefix(&self.cluster_prefix())?;
        Some((rest.get(..8)?, rest.get(8..)?.strip_prefix('_')?.split('_')))
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
    fn a_name_tells_the_change_that_it_decides() {
        for (change, expected) in [(None, None), (Some(3), Some(3)), (Some(3 << 32 | 1), Some(3 << 32 | 1))] {
            let name = format!("{PREFIX}{}_4711_750_0_16390", THIRD.token(750, change));
            assert!(name.starts_with(&THIRD.prefix(750)), "{name}");
            assert_eq!((FIRST.change(&name), FIRST.origin(&name)), (expected, Some(Origin::Other)), "{name}");
            assert_eq!((STRANGER.change(&name), THIRD.origin(&name)), (None, Some(Origin::Own(750))), "{name}");
        }
        assert_eq!(FIRST.change("docshard_0000000000001234000002ee_e1_lx_1"), None);
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
