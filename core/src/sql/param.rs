//! Parameters of SQL statements.

/// A parameter's value, with its type.
#[allow(missing_docs, reason = "a variant has the name of its type")]
#[derive(Clone, Copy, Debug)]
pub enum Param<'a> {
    Bytea(&'a [u8]),
    OptBytea(Option<&'a [u8]>),
    ByteaArray(&'a [&'a [u8]]),
    OwnedByteaArray(&'a [Vec<u8>]),
    Int4(i32),
    OptInt4(Option<i32>),
    Int4Array(&'a [i32]),
    Int8(i64),
    OptInt8(Option<i64>),
    Int8Array(&'a [i64]),
    Text(&'a str),
    OptText(Option<&'a str>),
    TextArray(&'a [&'a str]),
    OwnedTextArray(&'a [String]),
    Bool(bool),
}
