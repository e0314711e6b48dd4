//! What a write does to the documents that it finds.

use super::options;
use super::query::Query;
use crate::pg::error::{Error, Result};
use crate::pg::memory::recently_used::RecentlyUsed;
use docshard_core::error::Kind;
use docshard_core::query::update::{Compiled, Instruction, Style, Update};
use std::cell::RefCell;
use std::rc::Rc;

/// An update, parsed, with the text that shards are sent.
#[derive(Debug)]
pub struct Modification {
    /// the update
    pub update: Update,
    /// what `update::read` reads
    pub text: String,
}

/// How many updates a session keeps parsed: programs send the same operators again and again.
const MOST_KEPT: usize = 8;
/// Longer ones are not kept, in bytes.
const LONGEST_KEPT: usize = 1024;

thread_local! {
    /// By style and text.
    static KEPT: RefCell<RecentlyUsed<(Style, String), Rc<Modification>, MOST_KEPT>> = const { RefCell::new(RecentlyUsed::NONE) };
}

impl Modification {
    /// What is kept of an update without array filters and setting.
    pub fn kept(update: &str, style: Style) -> Option<Rc<Self>> {
        KEPT.with_borrow(|kept| kept.find(|(known, text)| *known == style && text == update))
    }

    /// Parses an update of the documents that `query` finds; `array_filters` is a JSON array. The present time is the
    /// time of `$currentDate`, on all shards and in all attempts.
    ///
    /// # Errors
    /// Those of [`Instruction::compile`].
    pub fn parse(update: &str, style: Style, array_filters: Option<&str>, query: &Query) -> Result<Rc<Self>> {
        let setting = query.setting.as_ref();
        let may_be_kept = array_filters.is_none() && setting.is_none() && update.len() <= LONGEST_KEPT;
        if may_be_kept && let Some(known) = Self::kept(update, style) {
            return Ok(known);
        }
        let instruction = Instruction {
            update,
            style,
            array_filters,
            filter: &query.text,
            now: options::now(),
            environment: setting,
        };
        let Compiled { update: parsed, text, is_lasting } = instruction.compile()?;
        let modification = Rc::new(Self { update: parsed, text });
        if may_be_kept && is_lasting {
            KEPT.with_borrow_mut(|kept| kept.keep((style, update.to_owned()), Rc::clone(&modification)));
        }
        Ok(modification)
    }
}

/// A document that changed between being found and being written is looked for again, so often: many clients may go for the
/// first of the same documents, and each of them gets one in turn.
pub(super) const ATTEMPTS: usize = 1000;

pub(super) fn contention(namespace: &str) -> Error {
    Error::new(
        Kind::WriteConflict,
        format!("{namespace}: the document changed again and again while it was being written"),
    )
    .with_hint("Run the statement again.")
}
