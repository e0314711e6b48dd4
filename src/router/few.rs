//! Finds of few documents that one index leads to, or of one by its key: a shard does it at once, and answers one value. See
//! `ownership::few` and `ownership::documents`.
//!
//! The first needs an index whose b-tree's keys are all that the filter says, each column's being one range; and a limit, or an
//! equality for the first column, so that there may be few. A shard may answer that it is none of its searches; then the find
//! is a statement for PostgreSQL as any other, and the next ones by that index are, too.

use super::aim;
use super::call::Call;
use super::choice::{best_of, says_one_range};
use super::condition::Bound;
use super::covered;
use super::dispatch::{self, Answer, Destination, RowStream};
use super::halves::is_turned;
use super::hint::{self, Means};
use super::options::FindOptions;
use super::read::Query;
use super::statement::{Order, Statement, column_order, projection};
use crate::catalog::model::{Collection, Index};
use crate::pg::error::Result;
use docshard_core::query::index::{APART, Wanted};
use docshard_core::values::key::KeyRanges;
use std::cell::RefCell;
use std::collections::HashMap;

/// So many documents are few.
const MOST: u64 = 128;
/// So many finds by an index go to PostgreSQL after a shard has refused one.
const PAUSE: u32 = 200;

thread_local! {
    /// How many finds still go to PostgreSQL.
    static PAUSED: RefCell<HashMap<Kind, u32>> = RefCell::default();
}

/// Finds of a collection, by the number of an index, 0 being the primary key; true for those without a limit.
type Kind = (i32, i32, bool);

/// What shards are asked.
pub struct Few {
    statement: Statement,
    /// the order in which documents come from each shard
    pub order: Order,
    kind: Kind,
}

/// A range of an index, and how its documents come.
struct Way {
    index: i32,
    lo: Vec<Vec<u8>>,
    hi: Vec<Vec<u8>>,
    backward: bool,
    /// the first column's is one key
    is_narrow: bool,
    /// they come in the order that is asked for
    in_order: bool,
    order: Order,
}

impl Few {
    /// The find, if it is one of few documents. `keys` are the shard keys that documents can have which match; `single`: one
    /// shard is asked.
    pub fn of_find(
        collection: &Collection,
        query: &Query,
        keys: &KeyRanges,
        options: &FindOptions,
        single: bool,
    ) -> Option<Self> {
        let most = options.limit.map_or(Some(MOST), |limit| limit.checked_add(options.skip));
        let most = most.filter(|most| *most <= MOST)?;
        let all = options.limit.is_none();
        if !matches!(hint::means(collection, query), Ok(Means::Free)) {
            return None;
        }
        let way = by_primary_key(collection, query, keys, options).or_else(|| by_index(collection, query, options))?;
        let kind = (collection.id, way.index, all);
        if all && !way.is_narrow || is_paused(kind) {
            return None;
        }
        // What comes from one shard, or in any order, needs no key to be merged by; the primary key's order has one.
        let keyed = !single && options.sort.is_some();
        let by_text = !way.in_order || keyed && way.index != 0;
        let sort = options.sort.as_ref().filter(|_| by_text).map(|(_, text)| text.clone());
        let call = Call::of("find_few", collection)
            .literal(way.index)
            .argument(Bound::BytesArray(way.lo))
            .argument(Bound::BytesArray(way.hi))
            .literal(way.backward)
            .literal(most)
            .literal(all)
            .argument(Bound::Text(sort.unwrap_or_default()))
            .literal(way.in_order)
            .literal(keyed)
            .argument(Bound::Text(projection(query, options).unwrap_or_default()));
        Some(Self { statement: call.statement(), order: way.order, kind })
    }

    /// Asks the shards; None if one of them leaves it to PostgreSQL.
    ///
    /// # Errors
    /// As `dispatch::read`.
    pub fn run(&self, collection: &Collection, destinations: &[Destination]) -> Result<Option<Vec<RowStream>>> {
        let mut answers = Vec::with_capacity(destinations.len());
        for mut stream in dispatch::read_at_most(collection, destinations, &self.statement, Some(1))? {
            let answer = stream.next_row()?.filter(|answer| answer.get(0).is_some());
            while stream.next_row()?.is_some() {}
            answers.push(answer);
        }
        let answers: Option<Vec<Answer>> = answers.into_iter().collect();
        if answers.is_none() {
            PAUSED.with_borrow_mut(|paused| paused.insert(self.kind, PAUSE));
        }
        answers.map(|answers| answers.iter().map(RowStream::packed).collect()).transpose()
    }
}

/// The statement of a find for one whole document of one key, which a shard does at once: see `ownership::documents`. Its one
/// row is null if there is none. `keys` are the shard keys that documents can have which match. None: the find asks for
/// something else.
pub fn find_by_key(
    collection: &Collection,
    query: &Query,
    keys: &KeyRanges,
    options: &FindOptions,
) -> Option<Statement> {
    if query.bounds.is_some() || options.skip > 0 || options.projection.is_some() {
        return None;
    }
    // Of one `_id` there is one document at most, whichever comes first.
    let is_first = options.limit == Some(1) && options.sort.is_none();
    if !is_first && aim::one_id(query).is_none() {
        return None;
    }
    let key = aim::one_key(collection, query, keys)?;
    Some(key.arguments_of(Call::of("find_document", collection)).statement())
}

fn is_paused(kind: Kind) -> bool {
    PAUSED.with_borrow_mut(|paused| {
        let Some(left) = paused.get_mut(&kind) else { return false };
        *left -= 1;
        if *left == 0 {
            paused.remove(&kind);
        }
        true
    })
}

/// By a range of shard keys, which is all that the filter says.
fn by_primary_key(collection: &Collection, query: &Query, keys: &KeyRanges, options: &FindOptions) -> Option<Way> {
    let [range] = keys.as_slice() else { return None };
    if collection.key.is_unsharded() || !says_one_range(collection, &query.filter) {
        return None;
    }
    let (lo, hi) = (vec![range.lo.clone()], vec![range.hi.clone().unwrap_or_default()]);
    let first = collection.key.fields.first().map(|(path, _)| query.filter.ranges_of(path));
    let is_narrow = first.is_some_and(|ranges| ranges.as_point().is_some());
    let way = |backward, in_order, order| Way { index: 0, lo, hi, backward, is_narrow, in_order, order };
    let sort = options.sort.as_ref();
    match sort.map(|(sort, _)| column_order(collection, &query.filter, sort)) {
        Some(Some(("t.skey", false))) => Some(way(false, true, Order::Ascending)),
        Some(Some(("t.skey", true))) => Some(way(true, true, Order::Descending)),
        Some(Some(_)) => None,
        // Of all documents there are many to sort, and without an order they are read soonest as they lie.
        _ if keys.is_all() => None,
        // An index that has the order as well need not look at all of the range.
        Some(None) => by_index(collection, query, options).or_else(|| Some(way(false, false, Order::Ascending))),
        None => Some(way(false, true, Order::None)),
    }
}

/// By a secondary index, whose keys are all that the filter says.
fn by_index(collection: &Collection, query: &Query, options: &FindOptions) -> Option<Way> {
    let filter = &query.filter;
    let sort = options.sort.as_ref().map(|(sort, _)| sort);
    if sort.is_some_and(|sort| column_order(collection, filter, sort).is_some()) {
        return None;
    }
    let turned = |index: &Index, wanted: &Wanted| sort.and_then(|sort| is_turned(index, wanted, sort));
    let (mut index, mut wanted) = best_of(collection, filter, |index, wanted| turned(index, wanted).is_some())?;
    // One that was chosen for its order may narrow the search less than another.
    if turned(index, &wanted).is_some()
        && let Some(narrower) = best_of(collection, filter, |_, _| false)
        && narrower.1.score() > wanted.score()
    {
        (index, wanted) = narrower;
    }
    let keys = &index.keys;
    let is_plain = keys.has_tree() && keys.has_entries() && index.partial.is_none() && wanted.row.is_none();
    if !is_plain || !covered::is_exact(index, &wanted, filter) {
        return None;
    }
    // Then PostgreSQL can read the answer from the index.
    let told = options.included.as_deref();
    if told.is_some_and(|told| covered::exactly(index, &wanted, filter, told).is_some()) {
        return None;
    }
    let turned = turned(index, &wanted);
    if wanted.is_all() && turned.is_none() {
        return None;
    }
    let (mut lo, mut hi) = (Vec::new(), Vec::new());
    for ranges in &wanted.columns {
        let [range] = ranges.as_slice() else { return None };
        match range.as_point() {
            Some(point) => {
                lo.push(point.to_vec());
                hi.push(point.to_vec());
            }
            None => {
                lo.push(range.lo.clone());
                hi.push(range.hi.clone().unwrap_or_else(|| APART.to_vec()));
            }
        }
    }
    Some(Way {
        index: index.id,
        lo,
        hi,
        backward: turned == Some(true),
        is_narrow: wanted.is_fixed(0),
        in_order: sort.is_none() || turned.is_some(),
        order: if sort.is_some() { Order::Ascending } else { Order::None },
    })
}
