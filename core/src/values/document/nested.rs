//! The children of an owned array or object.
//!
//! Cloning, comparing, writing and dropping a value recurse into its children, so its depth must be bounded before it is made.
//! INVARIANT: `levels` is the depth, and code that adds levels repeatedly calls [`Nested::new`], which refuses more than
//! [`MAX_VALUE_DEPTH`](super::MAX_VALUE_DEPTH).

use super::MAX_VALUE_DEPTH;
use crate::error::{Kind, Result, ensure};
use std::ops::Deref;

/// The elements of an array, or the fields of an object.
#[derive(Clone, Debug)]
pub struct Nested<T> {
    children: Vec<T>,
    /// how deep arrays and objects nest, with this one: at least 1
    levels: u16,
}

/// What an array or object consists of.
pub trait Child {
    /// How deep arrays and objects nest in it; 0 for a scalar.
    fn levels(&self) -> u16;
}

impl<T> Nested<T> {
    /// How deep arrays and objects nest, with this one.
    #[inline]
    pub(crate) fn levels(&self) -> u16 {
        self.levels
    }
}

impl<T: Child> Nested<T> {
    /// Nests values.
    ///
    /// # Errors
    /// `DocumentTooDeep` beyond the deepest value.
    #[inline]
    pub fn new(children: Vec<T>) -> Result<Nested<T>> {
        let nested = Nested::fixed(children);
        ensure!(
            usize::from(nested.levels) <= MAX_VALUE_DEPTH,
            Kind::DocumentTooDeep,
            "A value is nested more than {MAX_VALUE_DEPTH} levels deep"
        );
        Ok(nested)
    }

    /// Nests values without checking the depth. RULE: the structure is one that the program fixes, or is no deeper than the one that the
    /// values come from. A client must not be able to add levels repeatedly by way of this function.
    #[inline]
    pub(crate) fn fixed(children: Vec<T>) -> Nested<T> {
        let deepest = children.iter().map(Child::levels).max().unwrap_or(0);
        Nested { children, levels: deepest.saturating_add(1) }
    }

    /// The children.
    pub fn into_vec(self) -> Vec<T> {
        self.children
    }

    /// Changes the children, without a check, as [`fixed`](Self::fixed).
    pub(crate) fn edit<R>(&mut self, change: impl FnOnce(&mut Vec<T>) -> R) -> R {
        let mut children = std::mem::take(&mut self.children);
        let result = change(&mut children);
        *self = Nested::fixed(children);
        result
    }
}

impl<T> Deref for Nested<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.children
    }
}

impl<T> IntoIterator for Nested<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.children.into_iter()
    }
}

impl<'n, T> IntoIterator for &'n Nested<T> {
    type Item = &'n T;
    type IntoIter = std::slice::Iter<'n, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.children.iter()
    }
}
