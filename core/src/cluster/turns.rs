//! The order in which a process tries items of work, some of which are blocked, such as drops of tables that a client has locked.
//!
//! Each item belongs to a group, such as a database. A client that blocks one item of a group may block all of them. A round ends when the
//! process has waited too long for an item. The next round begins with the next group, and tries first in each group the items behind the one for
//! which it has waited. So if `n` groups have blocked items, the other groups wait for `n` rounds at most, however many items are blocked.

use std::collections::BTreeMap;

/// The items for which the process has waited too long. `G` is the group of an item.
#[derive(Debug)]
pub struct Turns<G> {
    last: Option<G>,
    /// the last such item of each group
    items: BTreeMap<G, i32>,
}

impl<G> Default for Turns<G> {
    fn default() -> Self {
        Self { last: None, items: BTreeMap::new() }
    }
}

impl<G: Ord + Clone> Turns<G> {
    /// The key by which to sort an item.
    pub fn place(&self, group: &G, item: i32) -> (bool, G, bool, i32) {
        let group_has_passed = self.last.as_ref().is_some_and(|last| group <= last);
        let item_has_passed = self.items.get(group).is_some_and(|last| item <= *last);
        (group_has_passed, group.clone(), item_has_passed, item)
    }

    /// Records that the process has waited too long for an item, which becomes the last one.
    pub fn pass(&mut self, group: G, item: i32) {
        self.items.insert(group.clone(), item);
        self.last = Some(group);
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn who_delays_all_of_its_items_delays_no_other_group_for_long() {
        let mut items: Vec<(&str, i32)> = (1..100).map(|item| ("b", item)).collect();
        items.extend([("a", 100), ("c", 101), ("d", 102)]);
        let mut turns = Turns::default();
        let mut done = Vec::new();
        for _ in 0..3 {
            items.sort_by_key(|(group, item)| turns.place(group, *item));
            let waits = items.iter().position(|(group, _)| ["b", "c"].contains(group)).unwrap();
            done.extend(items.drain(..waits));
            turns.pass(items[0].0, items[0].1);
        }
        assert_eq!(done, [("a", 100), ("d", 102)]);
        items.sort_by_key(|(group, item)| turns.place(group, *item));
        assert_eq!(items[..2], [("c", 101), ("b", 3)]);
        assert_eq!(items[98..], [("b", 1), ("b", 2)]);
    }
}
