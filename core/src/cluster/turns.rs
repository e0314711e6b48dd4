//! The order of work of which some items may have to wait, such as drops for which a lock is needed.
//!
//! Items belong to groups, and who delays one item can delay any number of items of the same group. A round ends when an item has waited too
//! long. The next round begins with the group after that item's, and each group with the item after its last one that waited. So after as
//! many rounds as there are groups that delay, every other group's turn has come, whatever the number of items.

use std::collections::BTreeMap;

/// The items that have waited too long. `G` is the group of an item.
#[derive(Debug)]
pub struct Turns<G> {
    last: Option<G>,
    /// the last item of each group that waited too long
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

    /// Records that an item has waited too long: it is the last one in the next order.
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
