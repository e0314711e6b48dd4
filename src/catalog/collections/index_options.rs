//! The options of a secondary index, and which of them exclude one another.

use crate::catalog::cache;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, bail};
use docshard_core::query::index::{IndexKeys, Partial};
use docshard_core::routing::model::Index;
use docshard_core::values::collation::Collator;
use serde_json::{Value as Json, json};
use std::rc::Rc;
use std::sync::Arc;

/// The longest time after which documents expire, in seconds: MongoDB's limit.
const MAX_EXPIRY_S: i64 = 2_147_483_647;

/// The longest name of an index, in bytes.
const MAX_NAME: usize = 128;

/// The options of an index.
#[derive(Clone, Debug, Default)]
pub struct IndexOptions<'a> {
    /// the name; None for MongoDB's default name
    pub name: Option<&'a str>,
    /// no two documents with the same keys
    pub unique: bool,
    /// searches do not use it
    pub hidden: bool,
    /// seconds between the date in its field and the deletion of the document
    pub expire_after_s: Option<i64>,
    /// it holds only documents that have at least one of its fields
    pub sparse: bool,
    /// it holds only documents that match this filter
    pub partial: Option<Rc<Partial>>,
    /// the order of its strings; None: by bytes
    pub collation: Option<Arc<Collator>>,
    /// which fields a wildcard index has
    pub wildcard_projection: Option<&'a Json>,
}

impl<'a> From<&'a Index> for IndexOptions<'a> {
    fn from(index: &'a Index) -> Self {
        let Index { unique, hidden, expire_after_s, sparse, .. } = *index;
        let partial = index.partial.clone().filter(|_| !sparse);
        let (collation, wildcard_projection) = (index.collation().cloned(), index.wildcard_projection.as_ref());
        let name = Some(index.name.as_str());
        Self { name, unique, hidden, expire_after_s, sparse, partial, collation, wildcard_projection }
    }
}

impl<'a> IndexOptions<'a> {
    /// The options as JSON, for another process of this database.
    pub fn to_json(&self) -> Json {
        json!({
            "name": self.name,
            "unique": self.unique,
            "hidden": self.hidden,
            "expireAfterSeconds": self.expire_after_s,
            "sparse": self.sparse,
            "partialFilterExpression": self.partial_filter(),
            "collation": self.collation.as_deref().map(|collator| collator.definition().clone()),
            "wildcardProjection": self.wildcard_projection,
        })
    }

    /// Reads what [`to_json`](Self::to_json) has returned.
    pub fn from_json(json: &'a Json) -> Result<Self> {
        let given = |name: &str| json.get(name).filter(|given| !given.is_null());
        let flag = |name: &str| given(name).and_then(Json::as_bool).unwrap_or(false);
        let collation = given("collation").map(Collator::parse).transpose()?.flatten().map(Arc::new);
        let partial = match given("partialFilterExpression").and_then(Json::as_str) {
            Some(text) => {
                Some(Rc::new(Partial::parse(&docshard_core::query::specification::parse(text)?, collation.as_deref())?))
            }
            None => None,
        };
        Ok(Self {
            name: given("name").and_then(Json::as_str),
            unique: flag("unique"),
            hidden: flag("hidden"),
            expire_after_s: given("expireAfterSeconds").and_then(Json::as_i64),
            sparse: flag("sparse"),
            partial,
            collation,
            wildcard_projection: given("wildcardProjection"),
        })
    }
}

impl IndexOptions<'_> {
    /// Returns the given name, or else MongoDB's default name for the keys.
    /// Errors: `BadValue`, `CannotCreateIndex` for a name that is not allowed.
    pub(super) fn name_of(&self, keys: &IndexKeys) -> Result<String> {
        let name = self.name.map_or_else(|| keys.default_name(), str::to_owned);
        if name == "*" {
            bail!(Kind::BadValue, "The index name '*' is not valid.");
        }
        if name.is_empty() || name.len() > MAX_NAME {
            bail!(Kind::CannotCreateIndex, "an index's name has 1 to {MAX_NAME} bytes: \"{name}\"");
        }
        Ok(name)
    }

    /// Checks that the options fit each other and the keys.
    /// Errors: `CannotCreateIndex`; `InvalidIndexSpecificationOption` for the index on `_id`; `Location16764` for a unique hashed index.
    pub(super) fn check(&self, keys: &IndexKeys) -> Result<()> {
        let refuse = |message: String| Err(Error::new(Kind::CannotCreateIndex, message));
        let of_id = keys.is_of_id();
        if self.hidden && of_id {
            bail!(Kind::InvalidIndexSpecificationOption, "can't hide _id index");
        }
        let given = [
            ("unique", self.unique),
            ("expireAfterSeconds", self.expire_after_s.is_some()),
            ("sparse", self.sparse),
            ("partialFilterExpression", self.partial.is_some()),
        ];
        if let Some((option, _)) = given.iter().find(|(_, given)| *given && of_id) {
            bail!(
                Kind::InvalidIndexSpecificationOption,
                "The field '{option}' is not valid for an _id index specification"
            );
        }
        if self.sparse && self.partial.is_some() {
            return refuse("cannot mix \"partialFilterExpression\" and \"sparse\" options".to_owned());
        }
        if keys.hashed.is_some() && self.unique {
            let message = "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.";
            return Err(Error::new(Kind::Location(16764), message));
        }
        if keys.wildcard.is_some() {
            let unfit = [("sparse", self.sparse), ("unique", self.unique)];
            if let Some((option, _)) = unfit.iter().find(|(_, given)| *given) {
                return refuse(format!("Index type 'wildcard' does not support the {option} option"));
            }
        }
        match self.expire_after_s {
            None => Ok(()),
            Some(_) if keys.wildcard.is_some() => refuse("Index type 'wildcard' cannot be a TTL index".to_owned()),
            Some(_) if keys.hashed.is_some() => refuse("Index type 'hashed' cannot be a TTL index".to_owned()),
            Some(_) if keys.fields.len() > 1 => {
                refuse("TTL indexes are single-field indexes, compound indexes do not support TTL".to_owned())
            }
            Some(seconds) if !(0..=MAX_EXPIRY_S).contains(&seconds) => {
                refuse(format!("TTL index 'expireAfterSeconds' option must be within 0 and {MAX_EXPIRY_S}: {seconds}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The filter of the documents that the index holds; None: all.
    pub(super) fn predicate(&self, keys: &IndexKeys) -> Option<Rc<Partial>> {
        if self.sparse { Some(Rc::new(Partial::sparse(keys))) } else { self.partial.clone() }
    }

    pub(super) fn partial_filter(&self) -> Option<&str> {
        self.partial.as_deref().map(|partial| partial.expression.as_str())
    }

    /// True if an index with these options and the keys of `index` counts as the same index. The keys are not compared here.
    pub(super) fn identify(&self, index: &Index) -> bool {
        (self.unique, self.sparse, self.partial_filter(), &self.collation)
            == (index.unique, index.sparse, index.partial_filter(), &index.keys.collation)
    }

    /// True if these options are equal to those of `index`, except for the name and the wildcard projection. The caller compares
    /// those, and the keys.
    pub(super) fn are_those_of(&self, index: &Index) -> bool {
        self.identify(index) && (self.hidden, self.expire_after_s) == (index.hidden, index.expire_after_s)
    }
}

/// The collation of a new index: the given one, or else the collection's; None: strings are compared by bytes.
pub fn collation(ns: &str, given: Option<&Json>) -> Result<Option<Arc<Collator>>> {
    match given {
        Some(json) if !json.as_object().is_some_and(serde_json::Map::is_empty) => {
            Ok(Collator::parse(json)?.map(Arc::new))
        }
        _ => Ok(cache::find(ns)?.and_then(|collection| collection.collation.clone())),
    }
}
