//! Decides whether one filter implies another, and checks the filters of partial indexes.
//!
//! RULE: the answer is true only if the implication is certain, as otherwise a search of a partial index could miss documents. Leaves are
//! compared by their tests alone. A leaf matches if one value at its path passes; so if each value that passes one test passes the other,
//! the implication also holds with arrays on the path.

use super::node::{FilterNode, Range, Test};
use super::{Filter, parse};
use crate::budget;
use crate::error::{Kind, Result, error};
use crate::values::document::value::Value;
use crate::values::order::{Class, compare_values, compare_views};
use crate::values::view::View;

impl Filter {
    /// True only if every document that this filter matches is matched by `other`, too.
    pub fn implies(&self, other: &Filter) -> bool {
        implies(&self.root, &other.root)
    }

    /// Checks that the filter is allowed for a partial index: equalities, ranges, `$in`, `$exists: true` and `$type`, joined by
    /// `$and` and `$or`.
    ///
    /// # Errors
    /// `CannotCreateIndex`; `QueryFeatureNotAllowed` for `$expr`.
    pub fn check_partial(&self) -> Result<()> {
        if self.has_expression {
            return Err(parse::not_allowed("$expr"));
        }
        check_partial(&self.root)
    }
}

fn check_partial(node: &FilterNode) -> Result<()> {
    budget::step();
    let what = match node {
        FilterNode::And(nodes) | FilterNode::Or(nodes) => return nodes.iter().try_for_each(check_partial),
        FilterNode::Leaf(_, Test::In(set)) if !set.patterns.is_empty() => "a regular expression in $in",
        FilterNode::Leaf(
            _,
            Test::Exists
            | Test::Never
            | Test::Null
            | Test::Equal(_)
            | Test::In(_)
            | Test::Range(_)
            | Test::Type(_)
            | Test::Collated(..),
        ) => return Ok(()),
        FilterNode::Leaf(_, Test::Modulo(_)) => "$mod",
        FilterNode::Leaf(_, Test::Bits(_)) => "a test of bits",
        FilterNode::Leaf(_, Test::Regex(_)) => "a regular expression",
        FilterNode::Leaf(_, Test::Size(_)) => "$size",
        FilterNode::Leaf(_, Test::ElementDocument(_) | Test::ElementValue(_)) => "$elemMatch",
        FilterNode::Not(_) => "a negation, as by $ne, $nin, $nor, $not or {$exists: false}",
        FilterNode::Expression(..) => "$expr",
        FilterNode::Schema(_) => "$jsonSchema",
        FilterNode::Sample(_) => "$sampleRate",
    };
    Err(error!(Kind::CannotCreateIndex, "Expression not supported in partial index: {what}")
        .with_hint("It takes equalities, $gt, $gte, $lt, $lte, $in, {$exists: true}, $type, $and and $or."))
}

fn implies(node: &FilterNode, wanted: &FilterNode) -> bool {
    budget::step();
    match (node, wanted) {
        (_, FilterNode::And(all)) => all.iter().all(|one| implies(node, one)),
        (FilterNode::Or(any), _) => any.iter().all(|one| implies(one, wanted)),
        // An `$or` is implied if a part of the `$and` implies it, or if the whole `$and` implies one branch of the `$or`.
        (FilterNode::And(parts), _) if parts.iter().any(|part| implies(part, wanted)) => true,
        (_, FilterNode::Or(any)) => any.iter().any(|one| implies(node, one)),
        (FilterNode::Leaf(path, test), FilterNode::Leaf(other, wanted)) => path == other && test_implies(test, wanted),
        (FilterNode::Not(inner), FilterNode::Leaf(path, Test::Exists)) => match &**inner {
            // `{$ne: null}` at a dotted path does not imply existence: for `{a: []}`, it matches at `a.b`, where there is no value.
            FilterNode::Leaf(other, Test::Null) => path == other && !path.contains('.'),
            _ => false,
        },
        _ => false,
    }
}

/// True only if each value that passes `test` also passes `wanted`; "missing" is such a value, too. Every test sees an array itself; most
/// tests also see its elements.
fn test_implies(test: &Test, wanted: &Test) -> bool {
    match (test, wanted) {
        (Test::Never, _) => true,
        (Test::Collated(test, _), Test::Exists) => test_implies(test, wanted),
        (Test::Collated(test, collator), Test::Collated(wanted, other)) => match (&**test, &**wanted) {
            (Test::Equal(value), Test::Equal(wanted)) => {
                collator == other
                    && compare_views(&View::of_value(value), &View::of_value(wanted), Some(collator)).is_eq()
            }
            _ => false,
        },
        (Test::Collated(..), _) | (_, Test::Collated(..)) => false,
        (Test::In(set), _) if set.patterns.is_empty() => {
            (!set.null || test_implies(&Test::Null, wanted)) && set.values.iter().all(|value| accepts(wanted, value))
        }
        (Test::Equal(value), _) => accepts(wanted, value),
        (Test::Null, Test::Null) => true,
        (Test::Null, Test::In(set)) => set.null,
        (Test::Null, _) => false,
        (Test::In(set), Test::Exists) => !set.null,
        (Test::Range(range), Test::Exists) => range.class.is_some(),
        (_, Test::Exists) => true,
        (Test::Range(range), Test::Range(wanted)) => range_implies(range, wanted),
        (Test::Type(types), Test::Type(wanted)) => types.is_subset_of(*wanted),
        _ => false,
    }
}

/// True only if every stored value equal to `value`, which is not null, passes.
fn accepts(test: &Test, value: &Value) -> bool {
    match test {
        Test::Exists => true,
        Test::Equal(wanted) => compare_values(value, wanted).is_eq(),
        Test::In(set) => set.values.binary_search_by(|wanted| compare_values(wanted, value)).is_ok(),
        Test::Range(range) => {
            range.class == Some(Class::of(value))
                && !is_nan(value)
                && range.side.accepts(compare_values(value, &range.bound))
        }
        _ => false,
    }
}

fn is_nan(value: &Value) -> bool {
    matches!(value, Value::Number(number) if number.is_nan())
}

fn range_implies(range: &Range, wanted: &Range) -> bool {
    if range.class.is_none() || range.class != wanted.class || range.side.is_upper() != wanted.side.is_upper() {
        return false;
    }
    let ordering = compare_values(&range.bound, &wanted.bound);
    let inner = if wanted.side.is_upper() { ordering.is_lt() } else { ordering.is_gt() };
    inner || ordering.is_eq() && (wanted.side.is_inclusive() || !range.side.is_inclusive())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn filter(json: Json) -> Filter {
        Filter::parse(&json).unwrap()
    }

    #[test]
    fn what_a_partial_filter_demands_may_be_demanded_in_many_ways() {
        for (query, partial) in [
            (json!({"a": 5}), json!({})),
            (json!({"a": 5}), json!({"a": {"$exists": true}})),
            (json!({"a": 5, "b": 1}), json!({"a": {"$gt": 3}})),
            (json!({"a": {"$gt": 3}}), json!({"a": {"$gt": 3}})),
            (json!({"a": {"$gt": 3}}), json!({"a": {"$gte": 3}})),
            (json!({"a": {"$gte": 4, "$lt": 9}}), json!({"a": {"$gt": 3}})),
            (json!({"a": {"$in": [4, 5]}}), json!({"a": {"$gt": 3}})),
            (json!({"a": {"$in": [4, 5]}}), json!({"a": {"$in": [3, 4, 5]}})),
            (json!({"a": 4}), json!({"a": {"$in": [3, 4]}})),
            (json!({"$or": [{"a": 4}, {"a": 7, "b": 1}]}), json!({"a": {"$gt": 3}})),
            (json!({"b": 1}), json!({"$or": [{"a": 1}, {"b": 1}]})),
            (json!({"a": 1, "b": 2, "c": 3}), json!({"a": 1, "b": {"$lt": 3}})),
            (json!({"a": {"$ne": null}}), json!({"a": {"$exists": true}})),
            (json!({"a": null}), json!({"a": null})),
            (json!({"a": {"$type": "int"}}), json!({"a": {"$type": "number"}})),
            (json!({"a": {"$size": 2}}), json!({"a": {"$exists": true}})),
            (json!({"a": {"$regex": "^x"}}), json!({"a": {"$exists": true}})),
        ] {
            assert!(filter(query.clone()).implies(&filter(partial.clone())), "{query} {partial}");
        }
    }

    #[test]
    fn filters_that_do_not_imply() {
        for (query, partial) in [
            (json!({}), json!({"a": {"$exists": true}})),
            (json!({"a": null}), json!({"a": {"$exists": true}})),
            (json!({"a": {"$in": [null, 1]}}), json!({"a": {"$exists": true}})),
            (json!({"a": {"$lte": {"$maxKey": 1}}}), json!({"a": {"$exists": true}})),
            (json!({"a": {"$gte": 3}}), json!({"a": {"$gt": 3}})),
            (json!({"a": {"$gt": 3}}), json!({"a": {"$lt": 9}})),
            (json!({"a": {"$gt": 3}}), json!({"b": {"$gt": 3}})),
            (json!({"a": "5"}), json!({"a": {"$gt": 3}})),
            (json!({"a": {"$numberDouble": "NaN"}}), json!({"a": {"$lt": 3}})),
            (json!({"a": 5}), json!({"a": {"$type": "int"}})),
            (json!({"$or": [{"a": 4}, {"b": 7}]}), json!({"a": {"$gt": 3}})),
            (json!({"$nor": [{"a": 4}]}), json!({"a": 4})),
            (json!({"a.b": {"$ne": null}}), json!({"a.b": {"$exists": true}})),
            (json!({"a": {"$elemMatch": {"$gt": 3}}}), json!({"a": {"$gt": 3}})),
        ] {
            assert!(!filter(query.clone()).implies(&filter(partial.clone())), "{query} {partial}");
        }
    }

    #[test]
    fn which_filters_a_partial_index_allows() {
        for bad in [
            json!({"a": {"$ne": 1}}),
            json!({"a": {"$exists": false}}),
            json!({"a": {"$nin": [1]}}),
            json!({"$nor": [{"a": 1}]}),
            json!({"a": {"$regex": "x"}}),
            json!({"a": {"$in": [{"$regularExpression": {"pattern": "x", "options": ""}}]}}),
            json!({"a": {"$mod": [2, 1]}}),
            json!({"a": {"$size": 1}}),
            json!({"a": {"$elemMatch": {"b": 1}}}),
            json!({"a": {"$bitsAllSet": 1}}),
            json!({"$jsonSchema": {}}),
            json!({"$or": [{"a": 1}, {"b": {"$not": {"$gt": 1}}}]}),
        ] {
            assert_eq!(filter(bad.clone()).check_partial().unwrap_err().kind, Kind::CannotCreateIndex, "{bad}");
        }
        for good in [
            json!({}),
            json!({"a": {"$gt": 1, "$lte": 3}, "b": {"$exists": true}}),
            json!({"$or": [{"a": {"$in": [1, null]}}, {"$and": [{"b": {"$type": "string"}}]}]}),
        ] {
            filter(good).check_partial().unwrap();
        }
    }
}
